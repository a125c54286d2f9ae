"""The trials of a hyperparameter search. Each is in the record of the run that trains it.

A study is a name under which runs are found. Only trials whose configuration is invalid have no
run, so each of them has a file in the study's folder.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from launcher.config.schema.metric_direction import sort_best_first
from launcher.errors import ConfigError
from launcher.process.files import patiently, read_file
from launcher.rundir.folder import run_folders, run_name
from launcher.rundir.history import Curve, History
from launcher.rundir.record_format import TrialData, UnsupportedRecord, parse_record
from launcher.runs.format import number as short
from launcher.runs.objective import Which, curve_of, value
from launcher.runs.stored_run import StoredRun

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

STUDIES = "studies"
INVALID = "invalid"
Value = str | int | float
Direction = Literal["minimize", "maximize"]
Status = Literal["open", "paused", "pruned", "completed", "failed", "invalid"]
DIGITS = 6
"""Significant digits of a sampled number, so that people can read and type the override."""


@dataclass(frozen=True)
class Goal:
    """The goal of a search."""

    objective: str
    direction: Direction
    value: Which = "best"
    max_failures: float = math.inf

    @property
    def mode(self) -> Literal["min", "max"]:
        return "max" if self.direction == "maximize" else "min"


@dataclass
class Trial:
    """One point of the search space, and the run that trains it.

    The record of the run has `RECORDED_FIELDS`. `sampled` has Optuna's values, which are not
    rounded; `attributes` are notes of its sampler. The trial pauses at `target` until it is
    promoted. At `pruned` it was stopped because others were better, and `cancelled` counts as that.
    Without a `run` the configuration is invalid (`rejection`).
    """

    goal: Goal
    number: int
    sampled: dict[str, Any]
    distributions: "dict[str, BaseDistribution]" = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    origin: Literal["sampled", "enqueued"] = "sampled"
    rejection: str | None = None
    bracket: int = 0
    target: int | None = None
    pruned: int | None = None
    cancelled: bool = False
    failures: int = 0

    run: str | None = None
    state: str | None = None
    step: int = 0
    curve: Curve = field(default_factory=Curve)
    reason: str | None = None
    logged: tuple[str, ...] = ()
    stored: StoredRun | None = None
    value: float = math.nan
    """The objective's value so far, or NaN without one."""

    @classmethod
    def of(cls, data: TrialData, run: StoredRun | None, goal: Goal) -> "Trial":
        """Read a trial from a record."""
        recorded: Mapping[str, Any] = data
        distributions = {
            key: _distribution(json.dumps(value)) for key, value in data["distributions"].items()
        }
        # A record of an earlier version lacks some.
        values = {name: recorded[name] for name in RECORDED_FIELDS if name in recorded}
        trial = cls(goal, **values | {"distributions": distributions})
        if run is not None:
            trial.run = run_name(run.folder.path)
            trial.look_at(run)
        return trial

    def as_data(self, study: str) -> TrialData:
        """Return what is recorded."""
        data: Any = {name: getattr(self, name) for name in RECORDED_FIELDS}
        data |= {"study": study, "distributions": as_json(self.distributions)}
        data |= {key: getattr(self.goal, key) for key in ("objective", "direction", "value")}
        recorded: TrialData = data
        return recorded

    @cached_property
    def params(self) -> dict[str, Any]:
        """The values, rounded for the command line."""
        return {
            key: round_value(value, self.distributions.get(key))
            for key, value in self.sampled.items()
        }

    def look(self, outputs: Path) -> None:
        """Read the progress of the run."""
        if self.run is not None:
            self.look_at(StoredRun.read(outputs / self.run))

    def look_at(self, run: StoredRun) -> None:
        self.stored = run
        self.state = run.recorded_state
        self.step = run.step
        history = History.of(run.folder)
        self.curve = curve_of(history, self.goal.objective)
        self.value = self.value_until()
        self.logged = tuple(history.metrics)
        self.reason = run.attempt.get("reason")

    @property
    def saved_step(self) -> int:
        """The step of the newest checkpoint, from which the trial is started again."""
        if self.stored is None:
            return 0
        return self.stored.folder.newest_step()

    @property
    def status(self) -> Status:
        if self.rejection is not None:
            return "invalid"
        if self.state == "completed":
            return "completed" if math.isfinite(self.value) else "failed"
        if self.failures > self.goal.max_failures:
            return "failed"
        if self.pruned is not None:
            return "pruned"
        if not self.is_at_rung:
            return "open"
        reached = self.value_at(self.target or 0)
        if reached is not None and math.isfinite(reached):
            return "paused"
        return "failed"

    @property
    def is_at_rung(self) -> bool:
        return (
            self.target is not None
            and self.step >= self.target
            and self.state in ("paused", "preempted")
        )

    def describe(self) -> str:
        """Describe the value: `val/loss 0.1`."""
        if self.logged and self.goal.objective not in self.logged:
            return f"{self.goal.objective} was not logged"
        return f"{self.goal.objective} {short(self.value)}"

    def value_at(self, step: int) -> float | None:
        """Return the objective's value at a rung, or None if the trial has not reached it."""
        has_reached = self.state == "completed" or self.step >= step
        if self.rejection is not None or self.stored is None or not has_reached:
            return None
        return self.value_until(step)

    def value_until(self, step: float = math.inf) -> float:
        """Return the objective's value up to a step, or NaN without one."""
        return value(self.curve, self.goal.value, self.goal.mode, step)


RECORDED_FIELDS = (
    "number",
    "sampled",
    "distributions",
    "attributes",
    "origin",
    "rejection",
    "bracket",
    "target",
    "pruned",
    "cancelled",
    "failures",
)
"""Fields of a trial that are in the record of the run. The others are read."""


def as_json(space: "Mapping[str, BaseDistribution]") -> dict[str, object]:
    from optuna.distributions import distribution_to_json

    return {key: json.loads(distribution_to_json(value)) for key, value in space.items()}


@cache
def _distribution(text: str) -> "BaseDistribution":
    from optuna.distributions import json_to_distribution

    return json_to_distribution(text)


def round_value(value: Value, among: "BaseDistribution | None") -> Value:
    """Round a sampled value for the command line, within its range."""
    from optuna.distributions import FloatDistribution

    if not isinstance(among, FloatDistribution):
        return value
    short = float(f"{value:.{DIGITS}g}")
    return min(max(short, among.low), among.high)


def find_trials(outputs: Path, study: str) -> dict[int, tuple[TrialData, StoredRun | None]]:
    """Find the trials of a study, each with its run, by number."""
    result: dict[int, tuple[TrialData, StoredRun | None]] = {}
    for folder in run_folders(str(outputs)):
        trials = _trials_of(Path(folder, "run.json"), study)
        if trials:
            run = StoredRun.read(folder)
            # If a run has a copy in the folder, the first of both counts.
            for trial in trials:
                result.setdefault(trial["number"], (trial, run))
    for path in (outputs / STUDIES / study / INVALID).glob("*.json"):
        # A trial that cannot be read is asked for again.
        for trial in _trials_of(path, study):
            result.setdefault(trial["number"], (trial, None))
    return dict(sorted(result.items()))


def _trials_of(file: Path, study: str) -> list[TrialData]:
    """Read the trials of a study in a record, or none if the file is damaged."""
    try:
        content = patiently(lambda: read_file(file))
        # Runs of other studies are the usual case, and parsing takes ten times longer.
        if json.dumps(study).encode() not in content:
            return []
        return [one for one in parse_record(content).get("trials", ()) if one["study"] == study]
    except UnsupportedRecord as error:
        # Another trial in its place would be the same training, under its number.
        raise ConfigError(f"{file}: is {error}; use that version, or another name.") from error
    except (OSError, ValueError):
        return []


def best_of(trials: Sequence[Trial], goal: Goal) -> Trial | None:
    """Return the best completed trial."""
    completed = [trial for trial in trials if trial.status == "completed"]
    best_first = sort_best_first(completed, lambda trial: trial.value, goal.mode)
    return best_first[0] if best_first else None
