"""The series of a metric, which `plot` and `report` draw."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from launcher.config.messages import hint
from launcher.errors import ConfigError
from launcher.rundir.history import Curve
from launcher.runs.stored_run import StoredRuns

LOSS = "train/loss"
VALIDATION = "val/"
TRAINING = "train/"
EXACT = "train/lr/"


def check_metrics(runs: StoredRuns, metrics: Sequence[str]) -> None:
    """Check that some run has logged each of the metrics."""
    names = sorted({metric for run in runs for metric in run.history.metrics})
    if not metrics:
        raise ConfigError(f"--metric=: names no metric; e.g. --metric={LOSS}.")
    if not names:
        labels = ", ".join(run.label for run in runs[:8]) or "no run"
        raise ConfigError(f"{labels}: nothing has been logged yet.")
    unknown = [metric for metric in metrics if metric not in names]
    if unknown:
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


@dataclass
class Band:
    """The mean of several curves and the standard deviation, at steps where all have a value."""

    x: list[float] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    count: int = 0
    """The number of curves that have a value."""


def band(curves: Sequence[Curve], log: bool = False) -> Band:
    tables = [
        {
            x: math.log(y) if log else y
            for x, y in curve.points()
            if math.isfinite(y) and (y > 0 or not log)
        }
        for curve in curves
    ]
    # A run without a value has no part in the mean.
    tables = [table for table in tables if table]
    result = Band(count=len(tables))
    back = math.exp if log else float
    if not tables:
        return result
    for x in sorted(set.intersection(*map(set, tables))):
        values = [table[x] for table in tables]
        mean = statistics.fmean(values)
        sd = statistics.stdev(values) if len(values) > 1 else 0.0
        result.x.append(x)
        result.mean.append(back(mean))
        result.low.append(back(mean - sd))
        result.high.append(back(mean + sd))
    return result
