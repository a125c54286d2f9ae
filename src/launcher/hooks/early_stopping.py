"""End training when a metric has stopped getting better."""

from typing import Any, Literal

from launcher.hooks.base import BaseHook, Records
from launcher.hooks.best import Best
from launcher.types import NonNegativeFloat, PositiveInt


class EarlyStoppingHook(BaseHook):
    """
    Args:
        patience: so many values in a row without improvement end the run.
        metric: its logged name.
        mode: whether less or more is better.
        min_delta: a smaller gain is none.
        evaluated_every: of no effect here; it puts the evaluation's interval, which decides when such a run ends, into
            the run's identity.
    """

    def __init__(
        self,
        patience: PositiveInt = 5,
        metric: str = "val/loss",
        mode: Literal["min", "max"] = "min",
        min_delta: NonNegativeFloat = 0.0,
        evaluated_every: int | None = None,
    ):
        self.patience = patience
        self.best = Best(metric, mode, min_delta)
        self.misses = 0

    def on_log(self, trainer: Any, records: Records, dry_run: bool = False) -> None:
        value = self.best.find(records)
        if value is None or dry_run:
            return
        if self.best.update(value, trainer.step):
            self.misses = 0
            return
        self.misses += 1
        if self.misses >= self.patience:
            trainer.state.stop(
                f"{self.best.metric} has not improved on {self.best.value:.6g} (step {self.best.step}) "
                f"in {self.misses} evaluations"
            )

    def on_state_dict(self, trainer: Any, state_dict: dict[str, Any]) -> None:
        state_dict["early_stopping"] = {"best": self.best.state(), "misses": self.misses}

    def on_load_state_dict(self, trainer: Any, state_dict: dict[str, Any]) -> None:
        if saved := state_dict.get("early_stopping"):
            self.best.load(saved["best"])
            self.misses = saved["misses"]
