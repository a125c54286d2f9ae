"""The settings that a checkpoint restores over a changed configuration.

They belong to the optimizer's groups and to the loss scale. A resume sets a changed one again
after the restore. Which values of the groups follow from a key that is none of theirs is not known,
so a resume rejects its change.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.config.identity.difference import diff
from launcher.config.identity.equivalence import canonical
from launcher.config.messages import show, to_override_text
from launcher.config.plain_yaml import load
from launcher.config.tree import Node
from launcher.errors import ConfigError
from launcher.optim.schedule_state import SCHEDULED_KEYS
from launcher.optim.schedulers import set_rate
from launcher.resume.trainer import Resumable
from launcher.strategies.optimizer_state import IMPLEMENTATION_SETTINGS

Settings = dict[str, Any]
GROWTH, FIRST_SCALE = "growth_interval", "init_scale"
"""Keys of `precision`: one of the loss scale, and its first value."""


@dataclass(frozen=True)
class Change:
    """The configurations of a checkpoint and of the attempt that loads it."""

    before: Node
    now: Node

    @classmethod
    def since(cls, checkpoint: Path, config: str | None) -> "Change":
        """Return the change since a checkpoint. Without a configuration there is none."""
        file = checkpoint / "config.yaml"
        if config is None or not file.exists():
            return cls({}, {})
        return cls(load(file.read_bytes()), load(config))

    def differs(self, node: str) -> bool:
        return bool(self.before.get(node) != self.now.get(node))

    def of(self, node: str) -> Settings:
        """Return the arguments of a node's class that differ, with their current values.

        A key that is new with its default has not changed, nor has a class with another name.
        """
        nodes = [tree.get(node) or {} for tree in (self.before, self.now)]
        trees = [canonical({node: each}).get(node) or {} for each in nodes]
        keys = dict.fromkeys(key.partition(".")[0] for key in diff(*trees))
        return {key: nodes[1].get(key) for key in keys if not key.startswith("_")}


def settings_as_built(trainer: Resumable) -> list[Settings]:
    """Return the settings of the groups, to be called before a checkpoint is loaded."""
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in trainer.optimizer.param_groups
    ]


def keys_of(built: Sequence[Settings]) -> list[str]:
    return list(dict.fromkeys(key for settings in built for key in settings))


def keys_to_set(trainer: Resumable, built: Sequence[Settings], change: Change) -> list[str]:
    """Return the keys of the groups that have changed.

    Raises:
        ConfigError: another key of the optimizer has changed, or the strategy cannot change any.
    """
    known = keys_of(built) if trainer.strategy.has_plain_tensors else []
    changed = {k: v for k, v in change.of("optimizer").items() if k not in IMPLEMENTATION_SETTINGS}
    for key, value in changed.items():
        if key not in known:
            word = f"optimizer.{key}={to_override_text(value)}"
            raise ConfigError(
                f"{word}: the checkpoint's optimizer has another value,"
                " which a resume cannot change; leave it as it was, or start another run from the"
                f" checkpoint: python -m launcher.runs fork RUN {word}."
            )
    return list(changed)


def set_groups(
    trainer: Resumable, built: Sequence[Settings], keys: Collection[str], keeps_rates: bool
) -> None:
    """Give the groups these settings as they were built. A schedule keeps its learning rates."""
    cycles = getattr(trainer.lr_scheduler, "cycle_momentum", False)
    others = [key for key in keys if key != "lr" and not (cycles and key in SCHEDULED_KEYS)]
    for group, settings in zip(trainer.optimizer.param_groups, built, strict=False):
        group.update({key: settings[key] for key in others if key in settings})
        if "lr" not in keys:
            continue
        if "initial_lr" in settings:
            group["initial_lr"] = settings["initial_lr"]
        if not keeps_rates:
            set_rate(group, settings.get("initial_lr", settings["lr"]))


def set_loss_scale(trainer: Resumable, change: Change) -> None:
    """Give the loss scale its changed settings."""
    changed = change.of("precision")
    if not trainer.strategy.scaler.is_enabled():
        return
    if FIRST_SCALE in changed:
        raise ConfigError(
            f"precision.{FIRST_SCALE}={show(changed[FIRST_SCALE])}: is the loss scale of the first"
            " step, which the checkpoint is past; leave it as it was."
        )
    if GROWTH in changed:
        trainer.strategy.scaler.set_growth_interval(int(changed[GROWTH]))
