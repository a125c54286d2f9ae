"""The configuration of a job that uses a checkpoint, whose model must fit the weights."""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from launcher.config.messages import show
from launcher.config.options import composed_from
from launcher.config.overrides import parse
from launcher.config.resolve import escaped
from launcher.config.run_config import RunConfig, changed, from_stored, stored_tree
from launcher.config.sections import AUTO
from launcher.config.tree import get
from launcher.config.trust import Origin, names_in, names_in_files
from launcher.errors import ConfigError
from launcher.rundir.record_format import read_record

WHERE = ("job", "run", "paths", "dispatch", "device", "strategy", "tracker")
"""Keys from the command line, of where and how the job runs; all others are the checkpoint's."""
QUOTE = "'"
FIXED = ("model", "experiment")
"""Keys of the checkpoint that the command line must not contradict."""


def config_for(
    config: RunConfig, checkpoint: Path, trust: bool = False, built: Sequence[str] | None = None
) -> RunConfig:
    """Return the checkpoint's configuration, with the keys set on the command line (`data`, say).

    Args:
        config: the configuration of the command line.
        checkpoint: the folder of the checkpoint.
        trust: allow all code that the checkpoint's configuration names.
        built: the nodes that the job builds. Default None: all.
    """
    file = checkpoint / "config.yaml"
    # It was written by a trainer that was not composed.
    if not file.exists():
        return config
    composed, stored = config.of_the_run, stored_tree(file)
    merged = stored | {key: composed[key] for key in WHERE if key in composed}
    wrong = []
    for override in map(parse, config.overrides):
        key, value = override.key_or_group, override.value()
        top, now, then = key.split(".")[0], get(composed, key), get(stored, key)
        if (
            override.is_delete()
            or top in (*WHERE, "hydra")
            or now == then
            or (key == "trainer.micro_batch_size" and now == AUTO)
            or _is_same_choice(key, value, now, then, checkpoint)
        ):
            continue
        if top in FIXED:
            was = f"{key}={show(then).strip(QUOTE)}" if "." in key else f"another {key}"
            wrong.append(
                f"{key}={show(value).strip(QUOTE)}: the checkpoint {checkpoint} has {was}; leave"
                f" {key} out."
            )
        elif now is not None:
            merged = changed(merged, {key: now})
    if wrong:
        raise ConfigError(*wrong)
    origin = Origin(file, checkpoint.parent.parent, "job.trust=true (for `runs VERB RUN`: --trust)")
    run_overrides = [*names_in(config.plain), *names_in_files(composed_from({}))]
    nodes = [key for key in built or map(str, merged) if key not in WHERE]
    origin.checked(OmegaConf.create(escaped(merged)), nodes, trust, run_overrides)
    return from_stored(merged, config.hydra)


def _is_same_choice(key: str, value: object, now: object, then: object, checkpoint: Path) -> bool:
    """Return whether a group's option is the run's; `model=mlp` alone sets no sizes."""
    if "." in key:
        return False
    try:
        return bool(read_record(checkpoint.parent.parent / "run.json")["choices"][key] == value)
    except (OSError, ValueError, KeyError):
        targets = [node.get("_target_") if isinstance(node, dict) else None for node in (now, then)]
        return targets[0] is not None and targets[0] == targets[1]
