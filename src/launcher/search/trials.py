"""The trials of a search, with the decisions about each and the progress of its run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from launcher.config.metric_direction import ranked
from launcher.rundir.history import Curve, History
from launcher.runs.format import number as short
from launcher.runs.objective import curve_of, pareto_front, value
from launcher.runs.stored_run import StoredRun
from launcher.search.settings import Settings

Status = Literal["open", "paused", "pruned", "completed", "failed", "invalid"]


@dataclass
class Trial:
    """One point of the search space, and the run that trains it.

    The fields up to `failures` are kept in the study's journal; the others are read from the
    run's folder.
    """

    number: int
    params: dict[str, Any]
    origin: Literal["sampled", "enqueued", "known"] = "sampled"
    run: str | None = None
    """`<run.name>/<run.id>`, or None if the configuration is invalid."""
    refusal: str | None = None
    """Why the configuration is invalid."""
    bracket: int = 0
    target: int | None = None
    """Step at which the trial pauses until it is promoted, or None if it trains to its end."""
    pruned: int | None = None
    """Step at which it was stopped because others were better."""
    cancelled: bool = False
    """Its run was cancelled during the search, which counts as pruned."""
    failures: int = 0

    state: str | None = None
    step: int = 0
    curves: tuple[Curve, ...] = ()
    reason: str | None = None
    logged: tuple[str, ...] = ()

    def look(self, outputs: Path, settings: Settings) -> None:
        """Read the progress of the run."""
        if self.run is None:
            return
        run = StoredRun.read(outputs / self.run)
        history = History.of(run.folder)
        self.state, self.step = run.record.get("state"), int(run.record.get("step") or 0)
        self.curves = tuple(curve_of(history, objective) for objective in settings.objectives)
        self.logged = tuple(history.metrics)
        self.reason = run.attempts[-1].get("reason") if run.attempts else None

    def status(self, settings: Settings) -> Status:
        if self.refusal is not None:
            return "invalid"
        if self.state == "completed":
            return "completed" if all(map(math.isfinite, self.values(settings))) else "failed"
        if self.failures > settings.max_failures:
            return "failed"
        if self.pruned is not None:
            return "pruned"
        return "paused" if self.is_at_rung else "open"

    @property
    def is_at_rung(self) -> bool:
        return (
            self.target is not None
            and self.step >= self.target
            and self.state in ("paused", "preempted")
        )

    def values(self, settings: Settings) -> list[float]:
        """The value of each objective so far, or NaN for an objective without a value."""
        if not self.curves:
            return [math.nan] * len(settings.objectives)
        return [value(curve, settings.value, settings.mode) for curve in self.curves]

    def value_at(self, step: int, settings: Settings) -> float | None:
        """Return the objective's value at a rung, or None if the trial has not reached it."""
        if (
            self.refusal is not None
            or not self.curves
            or (self.state != "completed" and self.step < step)
        ):
            return None
        return value(self.curves[0], settings.value, settings.mode, step)


def best_of(trials: Sequence[Trial], settings: Settings) -> list[Trial]:
    """Return the best completed trial, or the Pareto front, each run once."""
    completed = [trial for trial in trials if trial.status(settings) == "completed"]
    signs = [-1 if direction == "maximize" else 1 for direction in settings.directions]
    costs = {
        trial.number: tuple(
            sign * value for sign, value in zip(signs, trial.values(settings), strict=True)
        )
        for trial in completed
    }
    if len(signs) == 1:
        return ranked(completed, lambda trial: costs[trial.number][0], "min")[:1]
    front = pareto_front(costs.values())
    best: dict[str | None, Trial] = {}
    for trial in completed:
        if costs[trial.number] in front:
            best.setdefault(trial.run, trial)
    return [*best.values()]


def described(trial: Trial, settings: Settings) -> str:
    """Describe a trial's values: `val/loss 0.1`."""
    pairs = zip(settings.objectives, trial.values(settings), strict=True)
    return ", ".join(f"{name} {short(value)}" for name, value in pairs)
