"""The configuration of a job that uses a checkpoint, whose model must fit the weights."""

import copy
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from launcher.config.command import task_overrides
from launcher.config.foreign import read_config
from launcher.config.messages import show
from launcher.config.resolve import resolved_yaml
from launcher.config.sections import AUTO
from launcher.errors import ConfigError
from launcher.rundir.record_format import stored_record

WHERE = ("job", "run", "paths", "dispatch", "device", "strategy", "tracker")
"""Keys from the command line, of where and how the job runs; all others are the checkpoint's."""
FIXED = ("model", "experiment")
"""Keys of the checkpoint that the command line must not contradict."""


def config_for(
    config: DictConfig, checkpoint: Path, trust: bool = False, built: Sequence[str] | None = None
) -> DictConfig:
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
    stored = read_config(
        file, trust, built, "job.trust=true (for `runs VERB RUN`: --trust)", left_out=WHERE
    )
    composed, merged = OmegaConf.create(resolved_yaml(config)), copy.deepcopy(stored)
    assert isinstance(composed, DictConfig)
    for key in WHERE:
        if key in composed:
            merged[key] = composed[key]
    wrong = []
    for key, value in explicit_overrides():
        top, now, then = (
            key.split(".")[0],
            OmegaConf.select(composed, key),
            OmegaConf.select(stored, key),
        )
        if (
            top in (*WHERE, "hydra")
            or now == then
            or (key == "trainer.micro_batch_size" and now == AUTO)
            or _is_same_choice(key, value, now, then, checkpoint)
        ):
            continue
        if top in FIXED:
            was = f"{key}={_short(then)}" if "." in key else f"another {key}"
            wrong.append(
                f"{key}={_short(value)}: the checkpoint {checkpoint} has {was}; leave {key} out."
            )
        elif now is not None:
            OmegaConf.update(merged, key, now, force_add=True)
    if wrong:
        raise ConfigError(*wrong)
    return merged


def explicit_overrides() -> list[tuple[str, object]]:
    parsed = OverridesParser.create().parse_overrides(task_overrides())
    return [
        (override.key_or_group, override.value()) for override in parsed if not override.is_delete()
    ]


def _is_same_choice(key: str, value: object, now: object, then: object, checkpoint: Path) -> bool:
    """Return whether a group's option is the run's; `model=mlp` alone sets no sizes."""
    if "." in key:
        return False
    chosen = stored_record(checkpoint.parent.parent).get("choices", {})
    if key in chosen:
        return chosen[key] == value
    targets = [
        node.get("_target_") if isinstance(node, DictConfig) else None for node in (now, then)
    ]
    return targets[0] is not None and targets[0] == targets[1]


def _short(value: object) -> str:
    return show(OmegaConf.to_container(value) if OmegaConf.is_config(value) else value).strip("'")
