"""The configuration of a job that uses a checkpoint, whose model must fit the weights."""

from collections.abc import Sequence
from pathlib import Path

from launcher.config.compose.overrides import parse
from launcher.config.messages import show
from launcher.config.run_config import RunConfig, from_stored, replace_values
from launcher.config.settings import AUTO
from launcher.config.tree import get
from launcher.config.trust import read_config
from launcher.errors import ConfigError
from launcher.rundir.run_on_disk import RunOnDisk

COMMAND_LINE_KEYS = ("job", "run", "paths", "dispatch", "device", "strategy", "tracker")
"""Keys from the command line, of where and how the job runs; all others are the checkpoint's."""
TRUST = "job.trust=true (for `runs VERB RUN`: --trust)"
CHECKPOINT_KEYS = ("model", "experiment")
"""Keys of the checkpoint that the command line must not contradict."""


def config_for(
    config: RunConfig, checkpoint: Path, trust: bool = False, built: Sequence[str] | None = None
) -> RunConfig:
    """Return the checkpoint's configuration, with the keys set on the command line (`data`, say).

    With `trust`, its configuration may name any code. `built` are the nodes that the job builds;
    None: all.
    """
    file = checkpoint / "config.yaml"
    # A trainer that was not composed writes no configuration.
    if not file.exists():
        return config
    stored = read_config(file, trust, built, TRUST, left_out=COMMAND_LINE_KEYS)
    composed = config.of_the_run
    merged = stored | {key: composed[key] for key in COMMAND_LINE_KEYS if key in composed}
    wrong = []
    place = f"the checkpoint {checkpoint}"
    for override in map(parse, config.overrides):
        key = override.key_or_group
        value = override.value()
        top = key.split(".")[0]
        now = get(composed, key)
        then = get(stored, key)
        is_auto = key == "trainer.micro_batch_size" and now == AUTO
        if override.is_delete() or top in (*COMMAND_LINE_KEYS, "hydra") or now == then or is_auto:
            continue
        if _is_same_choice(key, value, now, then, checkpoint):
            continue
        if top in CHECKPOINT_KEYS:
            was = f"{key}={show(then)}" if "." in key else f"another {key}"
            wrong.append(f"{key}={show(value)}: {place} has {was}; leave {key} out.")
        elif now is not None:
            merged = replace_values(merged, {key: now})
    if wrong:
        raise ConfigError(*wrong)
    return from_stored(merged, config.hydra)


def _is_same_choice(key: str, value: object, now: object, then: object, checkpoint: Path) -> bool:
    """Return whether a group's option is the run's; `model=mlp` alone sets no sizes."""
    if "." in key:
        return False
    chosen = RunOnDisk.read(checkpoint.parent.parent).record.get("choices", {})
    if key in chosen:
        return bool(chosen[key] == value)
    targets = [node.get("_target_") if isinstance(node, dict) else None for node in (now, then)]
    return targets[0] is not None and targets[0] == targets[1]
