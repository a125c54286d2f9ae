"""Ends training when a metric no longer improves."""

import copy
from collections.abc import Iterable
from typing import ClassVar, Literal

from launcher.config.schema.matters_from import ALL_STEPS, Pair, before_last_line
from launcher.config.tree import Node
from launcher.hooks.best import Best
from launcher.hooks.metric_schedule import SteeredByMetric
from launcher.hooks.view import Records, State, TrainerView
from launcher.process.plural import plural
from launcher.types import NonNegativeFloat, PositiveInt

KEYS = "hooks.early_stopping.metric", "hooks.early_stopping.mode"


def before_a_stop(one: Node | None, other: Node | None, pair: Pair) -> int:
    """Return the first steps of the logged lines after which neither run would stop."""
    hooks = [
        EarlyStoppingHook(**{key: value for key, value in node.items() if key[0] != "_"})
        for node in (one, other)
        if node is not None
    ]
    stops = [hook.stop_in(pair.lines()) for hook in hooks]
    return min([before_last_line(one, other, pair), *(stop - 1 for stop in stops)])


class EarlyStoppingHook(SteeredByMetric):
    """Ends training when a metric has not improved for some time.

    Args:
        patience: this many consecutive values without improvement end the run, counted from the
            first finite value. A fork counts from its first step.
        metric: the metric's logged name.
        mode: whether less or more is better. With auto, the metric's name decides.
        min_delta: improvements smaller than this do not count, nor do those by a millionth of the
            value.

    Examples:
        >>> class Stopping(Line):
        ...     def build_hooks(self):
        ...         stop = EarlyStoppingHook(patience=1, metric="train/loss", min_delta=9)
        ...         return [LoggingHook(interval=1), stop]
        >>> trainer = Stopping(max_steps=9, device="cpu")
        >>> trainer.train()
        >>> trainer.step
        2
    """

    matters_from: ClassVar = {"*": before_a_stop}

    def __init__(
        self,
        patience: PositiveInt = 5,
        metric: str = "val/loss",
        mode: Literal["auto", "min", "max"] = "auto",
        min_delta: NonNegativeFloat = 0.0,
    ):
        self.patience = patience
        self.best = Best(metric, mode, min_delta, KEYS)
        self.misses = 0
        self._reason: str | None = None

    def on_log(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        if not dry_run and self.best.observe(records):
            self._count(self.best.update(trainer.step))
            self._stop_if_due(trainer)

    def _count(self, is_best: bool) -> None:
        # A value that is not finite at first is waited for.
        self.misses = 0 if is_best or self.best.value is None else self.misses + 1

    def stop_in(self, lines: Iterable[Node]) -> int:
        """Take the state after these logged lines; return the step at which training stops."""
        self.misses = 0
        for step, is_best in self.best.replay(lines):
            self._count(is_best)
            if self.misses >= self.patience:
                return step
        return ALL_STEPS

    def state_after(self, lines: Iterable[Node]) -> dict[str, object]:
        """Return the state of a run that has logged these lines."""
        after = copy.deepcopy(self)
        after.stop_in(lines)
        return after._state()

    def _state(self) -> dict[str, object]:
        return {"early_stopping": {"best": self.best.state(), "misses": self.misses}}

    def _stop_if_due(self, trainer: TrainerView) -> None:
        if self.misses >= self.patience and trainer.state.stop_reason is None:
            self._reason = (
                f"{self.best.metric} has not improved on {self.best.value:.6g} (step"
                f" {self.best.step}) in {plural(self.misses, 'evaluation')}"
            )
            trainer.logger.info("Step %d: training stops early: %s.", trainer.step, self._reason)
            trainer.state.stop(self._reason)

    def on_ready(self, trainer: TrainerView) -> None:
        self._stop_if_due(trainer)

    def on_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        state_dict.update(self._state())
        if trainer.state.stop_reason == self._reason:
            # The stop is decided again in `on_ready`, since the next launch may have another
            # patience, or no early stopping.
            state_dict["training_state"]["stop_reason"] = None

    def on_load_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        # A fork has a patience of its own.
        if (saved := state_dict.get("early_stopping")) and not trainer.is_fork:
            self.best.load(saved["best"])
            self.misses = saved["misses"]
