"""The best value of a logged metric so far."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from launcher.config.schema.metric_direction import direction, is_better, meant_metrics
from launcher.errors import ConfigError, TrainingError
from launcher.hooks.records import flatten
from launcher.process import ranks


class Best:
    """The best value of a metric so far.

    It steers training, so all ranks must decide alike: `observe` takes rank 0's value.

    Args:
        min_delta: improvements smaller than this do not count, nor does rounding (`is_better`).
        keys: the keys of `metric` and `mode` in the configuration, for messages.
    """

    def __init__(
        self,
        metric: str,
        mode: Literal["auto", "min", "max"] = "auto",
        min_delta: float = 0.0,
        keys: tuple[str, str] = ("metric", "mode"),
    ):
        chosen = direction(metric) if mode == "auto" else mode
        if chosen is None:
            raise ConfigError(
                f"{keys[0]}={metric}: the name does not show whether less or more is better; set"
                f" {keys[1]}=min or {keys[1]}=max."
            )
        self.metric = metric
        self.min_delta = min_delta
        self.mode = chosen
        self._key = keys[0]
        self.value: float | None = None
        self.step = 0
        self.latest: float | None = None
        self._was_logged = False
        self._num_logs = 0
        self._num_checked = 1

    def observe(self, records: Mapping[str, object]) -> bool:
        """Look for the metric in logged records; return whether it is among them.

        The result is the same on all ranks, which must all call it for the same groups (`val`,
        `train`).
        """
        group = self.metric.partition("/")[0]
        groups = {name.partition("/")[0] for name in records}
        if groups & {group, "val"}:
            self._num_logs += 1
        if group not in groups:
            return False
        value = flatten(records).get(self.metric)
        self.latest = ranks.broadcast(None if value is None else float(value))
        self._was_logged |= self.latest is not None
        return self.latest is not None

    def update(self, step: int) -> bool:
        """Keep the observed value if it is the best so far; return whether it is."""
        if self.latest is None or not is_better(self.latest, self.value, self.mode, self.min_delta):
            return False
        self.value = self.latest
        self.step = step
        return True

    def replay(self, lines: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, bool]]:
        """Start again; yield each step with the metric, and whether its value is the best."""
        self.value = None
        self.step = 0
        for line in lines:
            if self.metric in line:
                # "nan" and "inf" are texts.
                self.latest = float(line[self.metric])
                yield line["step"], self.update(line["step"])

    def check(self, trainer: Any) -> None:
        """End the run if the metric is a logged one with a slip, after two evaluations.

        Any other metric may still come.
        """
        if self._was_logged or self._num_logs == self._num_checked or self._num_logs < 2:
            return
        is_first = self._num_checked == 1
        self._num_checked, names = self._num_logs, _list_logged(trainer)
        # An earlier attempt has logged it.
        if self.metric in names:
            return
        choices = meant_metrics(self.metric, names)
        if choices:
            raise ConfigError(
                f"{self._key}={self.metric}: is not logged; choose one of {', '.join(choices)}."
            )
        if is_first:
            trainer.logger.warning(
                "%s=%s: has not been logged so far, unlike %s. If no hook logs it, the run fails at"
                " its end.",
                self._key,
                self.metric,
                ", ".join(names),
            )

    def check_end(self, trainer: object, needs_validation: bool = True) -> None:
        """Check, at the end of training, that the metric was logged and so had an effect.

        Without `needs_validation`, a metric of `val` may be missing if there was no evaluation at
        all.
        """
        names = _list_logged(trainer)
        if self._was_logged or self.metric in names or not names:
            return
        needs_validation |= not self.metric.startswith("val/")
        if not needs_validation and not _has_evaluated(names):
            return
        raise TrainingError(
            f"{self._key}={self.metric}: was never logged, so it has had no effect; logged were"
            f" {', '.join(names)}."
        )

    def state(self) -> dict[str, Any]:
        return {"metric": self.metric, "mode": self.mode, "value": self.value, "step": self.step}

    def load(self, saved: dict[str, Any]) -> None:
        """Restore the best value, unless it belongs to another metric or mode."""
        if (saved["metric"], saved["mode"]) == (self.metric, self.mode):
            self.value = saved["value"]
            self.step = saved["step"]


def _list_logged(trainer: Any) -> list[str]:
    return sorted(name for name, value in trainer.state.metrics.items() if value is not None)


def _has_evaluated(names: list[str]) -> bool:
    return any(name.startswith("val/") for name in names)


def check_keeps_best(best: Best | None, key: str) -> Best:
    """Return the best value of a run, which must keep its best checkpoint: the key chooses it."""
    if best is None:
        raise ConfigError(
            f"{key}=best: hooks.checkpointing.best_metric=null keeps no best checkpoint; set it, or"
            f" use {key}=last."
        )
    return best


def best_step(best: Best | None, key: str) -> int:
    """Return the step of the best checkpoint, once training has ended."""
    best = check_keeps_best(best, key)
    if best.value is None:
        raise ConfigError(
            f"{key}=best: there is no best checkpoint, since {best.metric} had no finite value; use"
            f" {key}=last."
        )
    return best.step
