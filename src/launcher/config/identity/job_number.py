"""The number of a job in its sweep names no run.

It depends on the order in which the values of the sweep are typed.
"""

from omegaconf import DictConfig, OmegaConf

from launcher.config.identity.difference import diff
from launcher.config.identity.run_id import identity_to_hash
from launcher.config.messages import ConfigIssue, show
from launcher.config.tree import Tree, get


def find_job_numbers(config: DictConfig, written: Tree) -> list[ConfigIssue]:
    """Return an error for each hashed key whose value is made of a job's number.

    Args:
        config: composed, with its `hydra` node, and it resolves.
        written: the same as plain containers, interpolations as written.
    """
    before = OmegaConf.to_container(config.hydra.job, resolve=False)
    assert isinstance(before, dict)
    identities = []
    for number in (0, 1):
        config.hydra.job.num = number
        config.hydra.job.id = str(number)
        identities.append(identity_to_hash(config, written))
    config.hydra.job.num = before["num"]
    config.hydra.job.id = before["id"]
    return [
        ConfigIssue(
            key,
            show(get(written, key)).strip("'"),
            "is made of a job's number in its sweep, which depends on the order of the swept"
            f" values, so it cannot be a part of what names a run; sweep {key} itself.",
        )
        for key in diff(*identities)
    ]
