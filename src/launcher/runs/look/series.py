"""The series of a metric, which `plot` and `report` draw."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from launcher.config.messages import hint
from launcher.errors import ConfigError
from launcher.rundir.history import Curve
from launcher.runs.stored_run import StoredRun

LOSS, VALIDATION, TRAINING, EXACT = "train/loss", "val/", "train/", "train/lr/"
AXES = ("step", "time", "samples")


@dataclass(frozen=True)
class Axis:
    """The horizontal axis of curves (one of `AXES`), with its unit."""

    against: str
    unit: str
    scale: float = 1.0

    @classmethod
    def of(cls, runs: Sequence[StoredRun], against: str) -> "Axis":
        """Make the axis. Time is in the largest unit of which the longest run takes two."""
        if against != "time":
            return cls(against, against)
        longest = max(run.history.seconds for run in runs)
        for unit, scale in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
            if longest >= 2 * scale:
                return cls(against, f"time ({unit})", scale)
        return cls(against, "time (seconds)")

    def curve(self, run: StoredRun, metric: str) -> Curve:
        curve = run.history.curve(metric, self.against)
        return Curve([x / self.scale for x in curve.x], curve.y)

    def restarts(self, run: StoredRun) -> list[float]:
        return [x / self.scale for x in run.history.restarts(self.against)]


def check_metrics(runs: Sequence[StoredRun], metrics: Sequence[str]) -> None:
    """Check that some run has logged each of the metrics."""
    names = sorted({metric for run in runs for metric in run.history.metrics})
    if not names:
        labels = ", ".join(run.label for run in runs[:8])
        raise ConfigError(f"{labels}: nothing has been logged yet.")
    if unknown := [metric for metric in metrics if metric not in names]:
        raise ConfigError(*(unknown_metric(metric, names) for metric in unknown))


def unknown_metric(metric: str, names: Iterable[str]) -> str:
    return f"'--metric={metric}': no run has logged this{hint(metric, names)}"


def smooth(curve: Curve, metric: str, smoothing: float | None, log: bool) -> Curve:
    """Smooth a training metric. Schedules and validation stay as they are."""
    return curve.smooth(smoothing_of(curve, metric, smoothing), log)


def smoothing_of(curve: Curve, metric: str, smoothing: float | None) -> float:
    """Return the weight of the average. None: 0.9, about 10 values, or less for a short curve."""
    if not metric.startswith(TRAINING) or metric.startswith(EXACT):
        return 0.0
    # A short curve ends where its data ends.
    default = max(0.0, min(0.9, 1 - 10 / max(len(curve.x), 1)))
    return default if smoothing is None else smoothing


@dataclass(frozen=True)
class Band:
    """The mean of several curves and the standard deviation, at steps where all have a value."""

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def band(curves: Sequence[Curve], log: bool = False) -> Band:
    tables = [
        {
            x: math.log(y) if log else y
            for x, y in zip(curve.x, curve.y, strict=True)
            if math.isfinite(y) and (y > 0 or not log)
        }
        for curve in curves
        if curve.x
    ]
    steps = sorted(set.intersection(*map(set, tables))) if tables else []
    values = [[table[x] for table in tables] for x in steps]
    means = [statistics.fmean(each) for each in values]
    spreads = [statistics.stdev(each) if len(tables) > 1 else 0.0 for each in values]
    back = math.exp if log else float
    return Band(
        steps,
        [back(mean) for mean in means],
        [back(mean - sd) for mean, sd in zip(means, spreads, strict=True)],
        [back(mean + sd) for mean, sd in zip(means, spreads, strict=True)],
    )
