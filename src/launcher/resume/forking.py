"""A fork: a new run whose first state is a checkpoint of another run."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.checkpoint.find_checkpoint import find_checkpoint
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.errors import ConfigError
from launcher.resume.restored_settings import (
    Change,
    Settings,
    keys_of,
    set_groups,
    set_loss_scale,
    settings_as_built,
)
from launcher.resume.trainer import Resumable
from launcher.resume.weights_source import fit_names
from launcher.rundir.folder import checkpoint_of
from launcher.strategies.weights import model_tensors, names_of_tied

KEY = "run.fork_from"
PARTS = ("optimizer", "scheduler")
"""The nodes whose values a fork may change."""


@dataclass(frozen=True)
class Fork:
    """Source checkpoint of a forked run.

    Args:
        source: `<run id>/<step>`, or the folder of a checkpoint.
        outputs: the folder of the runs.
        without: parts of the checkpoint that are not loaded: `optimizer` (its moments), `data` (the
            position).
        config: this run's resolved configuration. If its optimizer or schedule differs from the
            checkpoint's, this run's settings are used, from the checkpoint's step on.
    """

    source: str
    outputs: Path
    without: tuple[str, ...] = ()
    config: str = ""

    def checkpoint(self) -> Path:
        path = checkpoint_of(self.outputs, self.source)
        if path is None:
            raise ConfigError(
                f"{KEY}={self.source}: there is no such checkpoint any more; fork from another one."
            )
        return find_checkpoint(path.parent, path, KEY, hashes=False)

    def restore(
        self, trainer: Resumable, stored: StoredCheckpoint, rank_state: Settings | None
    ) -> None:
        """Load the checkpoint, without the parts in `without`."""
        change = Change.since(stored.path, self.config)
        takes_optimizer = "optimizer" not in self.without
        has_own_settings = not takes_optimizer or any(map(change.differs, PARTS))
        if has_own_settings:
            self._check_takes_settings(trainer)
        if takes_optimizer:
            before, now = (_target(each.get("optimizer")) for each in (change.before, change.now))
            self._check_same_optimizer(before, now)
        built = settings_as_built(trainer)
        # The newest values are another run's, which this one may not log.
        state = stored.meta["training_state"] | {"metrics": {}}
        if "data" not in self.without:
            state |= {"data_loader": own_position(state, rank_state)}
        elif hasattr(trainer.source, "state_dict"):
            state |= {"data_loader": trainer.source.state_dict(), "epoch": 0}
        trainer.load_training_state(state)
        set_loss_scale(trainer, change)
        if takes_optimizer:
            trainer.strategy.load(stored)
        else:
            names = [*model_tensors(trainer.model), *names_of_tied(trainer.model)]
            trainer.strategy.load_weights(fit_names(stored, names))
        if has_own_settings:
            has_schedule = None not in (state["lr_scheduler"], trainer.lr_scheduler)
            set_groups(trainer, built, self._keys(change, built), keeps_rates=has_schedule)
        trainer.restore_schedule(state)

    def _keys(self, change: Change, built: Sequence[Settings]) -> Collection[str]:
        """Return the changed keys of the groups, or all if another key may have decided them."""
        changed = change.of("optimizer")
        known = keys_of(built)
        is_named = not change.differs("scheduler") and changed.keys() <= {*known}
        if is_named and "optimizer" not in self.without:
            return changed
        return known

    def _check_same_optimizer(self, before: str, now: str) -> None:
        if before != now:
            raise ConfigError(
                f"{KEY}={self.source}: its optimizer is {before}, and this run's {now}; add"
                " run.fork_without=[optimizer]."
            )

    def _check_takes_settings(self, trainer: Resumable) -> None:
        if not trainer.strategy.has_plain_tensors:
            raise ConfigError(
                f"{KEY}={self.source}: under strategy={trainer.strategy.name} a fork has the"
                " optimizer and schedule of its source; leave them as they are, or start from the"
                " weights with run.init_from."
            )


def own_position(training_state: Settings, rank_state: Settings | None) -> Any:
    """Return this rank's own position in the data, if it has stored one, else rank 0's."""
    return (rank_state or {}).get("data_loader") or training_state.get("data_loader")


def _target(node: object) -> str:
    return str(node.get("_target_") if isinstance(node, dict) else node).rpartition(".")[2]
