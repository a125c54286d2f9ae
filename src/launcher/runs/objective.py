"""The value by which a search judges a run."""

import math
from pathlib import Path
from typing import Literal

from launcher.config.compose.grid import GRID
from launcher.config.messages import hint
from launcher.config.schema.metric_direction import best_index, mode_of
from launcher.config.tree import Tree, get
from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder
from launcher.rundir.history import Curve, History

OWN_SWEEPERS = (GRID, "optuna")
"""Options of `hydra/sweeper` that ignore a job's return value."""
Which = Literal["best", "last"]


def objective_of(config: Tree, sweeper: str | None) -> str | None:
    """Return the metric whose value a job returns, or None if it returns all of its metrics."""
    metric = get(config, "job.objective")
    if metric is not None:
        return str(metric)
    monitored = get(config, "hooks.checkpointing.best_metric")
    if sweeper in (None, *OWN_SWEEPERS) or monitored is None:
        return None
    return str(monitored)


def job_value(config: Tree, metric: str) -> float:
    history = History.of(RunFolder(Path(config["run"]["dir"])))
    curve = curve_of(history, metric)
    if not curve.y:
        raise ConfigError(f"job.objective={metric}: is not logged{hint(metric, history.metrics)}")
    is_best_metric = get(config, "hooks.checkpointing.best_metric") == metric
    mode = get(config, "hooks.checkpointing.best_mode") if is_best_metric else None
    return value(curve, get(config, "job.value") or "best", mode_of(metric, mode))


def curve_of(history: History, metric: str) -> Curve:
    """Return a metric by step, without the evaluation before the first step."""
    curve = history.curve(metric)
    points = [(x, y) for x, y in curve.points() if x > 0]
    return Curve([x for x, _ in points], [y for _, y in points])


def value(
    curve: Curve, which: Which, mode: Literal["min", "max"], until: float = math.inf
) -> float:
    """Return the best finite value of a curve up to a step, or its last; NaN without any."""
    values = [y for x, y in curve.points() if x <= until]
    if which == "last":
        return values[-1] if values else math.nan
    index = best_index(values, mode)
    return math.nan if index is None else values[index]
