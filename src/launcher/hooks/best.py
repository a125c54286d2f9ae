"""The best value of a logged metric so far."""

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal

from launcher.config.direction import direction
from launcher.errors import ConfigError
from launcher.hooks.records import flatten
from launcher.run import ranks


class Best:
    """Keeps the best value of a metric. It steers training, so all ranks must decide alike: `observe` takes rank 0's
    value, and `update` uses that one.

    Args:
        metric: its logged name, like `val/loss`.
        mode: whether less or more is better; auto: by the metric's name.
        min_delta: improvements smaller than this do not count.
        keys: the keys of `metric` and `mode` in the configuration, for messages.
    Raises:
        ConfigError: `mode` is auto, and the name does not show whether less or more is better.
    """

    def __init__(
        self,
        metric: str,
        mode: Literal["auto", "min", "max"] = "auto",
        min_delta: float = 0.0,
        keys: tuple[str, str] = ("metric", "mode"),
    ):
        self.metric, self.min_delta, self._key = metric, min_delta, keys[0]
        self.mode = direction(metric) if mode == "auto" else mode
        if self.mode is None:
            raise ConfigError(
                f"{keys[0]}={metric}: the name does not show whether less or more is better; set {keys[1]}=min or "
                f"{keys[1]}=max."
            )
        self.value: float | None = None
        self.step = 0
        self.latest: float | None = None
        self._was_logged = False
        self._logged: dict[str, list[str]] = {}
        """The logged names by group, collected until the metric is among them."""

    def observe(self, records: Mapping[str, Any]) -> bool:
        """Look for the metric in logged records. All ranks must call it for the same groups (`val`, `train`).

        Returns:
            Whether the metric is among them; the same on all ranks.
        """
        group = self.metric.partition("/")[0]
        numbers = {name: value for name, value in flatten(records).items() if value is not None}
        if not self._was_logged:
            for each in {name.partition("/")[0] for name in records}:
                names = {name for name in numbers if name.partition("/")[0] == each}
                self._logged[each] = sorted(names.union(self._logged.get(each, ())))
        if not any(name.partition("/")[0] == group for name in records):
            return False
        self.latest = ranks.broadcast(float(numbers[self.metric]) if self.metric in numbers else None)
        self._was_logged |= self.latest is not None
        return self.latest is not None

    def update(self, step: int) -> bool:
        """Whether the observed value is the best so far; then it is kept. NaN and infinity never are."""
        if self.latest is None or not math.isfinite(self.latest):
            return False
        gain = math.inf if self.value is None else (self.value - self.latest) * (1 if self.mode == "min" else -1)
        if not gain > self.min_delta:
            return False
        self.value, self.step = self.latest, step
        return True

    def check(self) -> None:
        """At a step boundary, when all hooks have logged: the first evaluation must have the metric.

        Raises:
            ConfigError: it does not have it, or the metric's group is misspelt.
        """
        if self._was_logged or not self._logged:
            return
        group = self.metric.partition("/")[0]
        similar = [] if group in ("val", "train") else get_close_matches(group, self._logged, n=1)
        names = self._logged.get(group) or (self._logged[similar[0]] if similar else [])
        if any(name.endswith("/loss") for name in names):
            raise ConfigError(f"{self._key}={self.metric}: is not logged; choose one of {', '.join(names)}.")

    def state(self) -> dict[str, Any]:
        return {"metric": self.metric, "mode": self.mode, "value": self.value, "step": self.step}

    def load(self, saved: dict[str, Any]) -> None:
        """The best value of another metric or mode is ignored."""
        if (saved["metric"], saved["mode"]) == (self.metric, self.mode):
            self.value, self.step = saved["value"], saved["step"]
