"""The best value of a logged metric so far."""

import math
from typing import Any, Literal

from launcher.hooks.records import flatten


class Best:
    """
    Args:
        metric: its logged name, like `val/loss`.
        mode: whether less or more is better.
        min_delta: a smaller gain is none.
    """

    def __init__(self, metric: str, mode: Literal["min", "max"] = "min", min_delta: float = 0.0):
        self.metric, self.mode, self.min_delta = metric, mode, min_delta
        self.value: float | None = None
        self.step = 0

    def find(self, records: dict[str, Any]) -> float | None:
        """The metric's value in nested records, if it is there."""
        return next((float(value) for name, value in flatten(records) if name == self.metric), None)

    def update(self, value: float, step: int) -> bool:
        """Whether this one is better. NaN and infinity never are."""
        gain = math.inf if self.value is None else (self.value - value) * (1 if self.mode == "min" else -1)
        if not math.isfinite(value) or not gain > self.min_delta:
            return False
        self.value, self.step = value, step
        return True

    def state(self) -> dict[str, Any]:
        return {"metric": self.metric, "mode": self.mode, "value": self.value, "step": self.step}

    def load(self, saved: dict[str, Any]) -> None:
        """Of another metric or mode it says nothing, and is passed over."""
        if (saved["metric"], saved["mode"]) == (self.metric, self.mode):
            self.value, self.step = saved["value"], saved["step"]
