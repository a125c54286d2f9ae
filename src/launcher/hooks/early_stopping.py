"""Ends training when a metric no longer improves."""

from typing import Any, Literal

from launcher.hooks.base import BaseHook, Records, TrainerView
from launcher.hooks.best import Best
from launcher.types import NonNegativeFloat, PositiveInt

KEYS = "hooks.early_stopping.metric", "hooks.early_stopping.mode"


class EarlyStoppingHook(BaseHook):
    """
    Args:
        patience: this many values in a row without improvement end the run.
        metric: its logged name.
        mode: whether less or more is better; auto: by the metric's name.
        min_delta: improvements smaller than this do not count.
    """

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

    def on_log(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        if dry_run or not self.best.observe(records):
            return
        if self.best.update(trainer.step):
            self.misses = 0
            return
        self.misses += 1
        if self.misses >= self.patience and trainer.state.stop_reason is None:
            best = "a finite value" if self.best.value is None else f"{self.best.value:.6g} (step {self.best.step})"
            reason = f"{self.best.metric} has not improved on {best} in {self.misses} evaluations"
            trainer.logger.info("Step %d: training stops early: %s.", trainer.step, reason)
            trainer.state.stop(reason)

    def on_step_boundary(self, trainer: TrainerView) -> None:
        self.best.check()

    def on_state_dict(self, trainer: TrainerView, state_dict: dict[str, Any]) -> None:
        state_dict["early_stopping"] = {"best": self.best.state(), "misses": self.misses}

    def on_load_state_dict(self, trainer: TrainerView, state_dict: dict[str, Any]) -> None:
        if saved := state_dict.get("early_stopping"):
            self.best.load(saved["best"])
            self.misses = saved["misses"]
