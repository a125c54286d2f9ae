"""A hyperparameter search on disk: the study's folder has its trials, and the runs have their results."""

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from launcher.config.direction import is_better
from launcher.errors import ConfigError
from launcher.run.files import expanded
from launcher.run.history import Curve
from launcher.runs.objective import Which, curve_of, pareto_front, value
from launcher.runs.stored_run import StoredRun

STUDIES, SETTINGS, TRIALS = "studies", "study.json", "trials.jsonl"
NOTED = ("objectives", "directions", "value", "space")
"""The keys of study.json."""


@dataclass
class StudyTrial:
    """A trial and its run; `run` is None if its configuration was invalid or it has not started."""

    number: int
    params: dict[str, Any]
    ranges: dict[str, str]
    run: StoredRun | None
    state: str
    values: list[float]
    """Of each objective; NaN for none."""
    curve: Curve
    """The first objective by step."""

    @property
    def is_completed(self) -> bool:
        return self.state == "completed"


@dataclass
class StoredStudy:
    """
    Args:
        space: the range of each key, as Optuna's JSON has it.
    """

    folder: Path
    objectives: list[str]
    directions: list[str]
    value: Which
    space: dict[str, Any]
    trials: list[StudyTrial]

    @classmethod
    def read(cls, folder: Path) -> "StoredStudy":
        """
        Raises:
            ConfigError: a file of the study is missing or damaged.
        """
        try:
            settings = json.loads((folder / SETTINGS).read_text())
            asked: dict[int, dict[str, Any]] = {}
            for line in (folder / TRIALS).read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # else it was cut off while it was written, and has had no effect
                    entry = json.loads(line)
                    asked.setdefault(entry["number"], {}).update(entry)
            outputs = folder.absolute().parent.parent
            trials = [_trial(entry, outputs, settings) for entry in asked.values()]
            return cls(folder, trials=trials, **{key: settings[key] for key in NOTED})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{folder}: has no {SETTINGS}, or one that is damaged; repeat the command of the search."
            ) from error

    @property
    def runs(self) -> list[StoredRun]:
        """Each run once: equal trials share one."""
        return list({trial.run.label: trial.run for trial in self.trials if trial.run is not None}.values())

    @property
    def params(self) -> list[str]:
        return list(dict.fromkeys(key for trial in self.trials for key in trial.params))

    @property
    def mode(self) -> Literal["min", "max"]:
        """Of the first objective."""
        return "max" if self.directions[0] == "maximize" else "min"

    @cached_property
    def front(self) -> list[StudyTrial]:
        """The best completed trial; for several objectives, the Pareto front."""
        done = [trial for trial in self.trials if trial.is_completed]
        costs = {trial.number: self._costs(trial) for trial in done}
        front = pareto_front(costs.values())
        best = [trial for trial in done if costs[trial.number] in front]
        return best[:1] if len(self.objectives) == 1 else best

    def _costs(self, trial: StudyTrial) -> tuple[float, ...]:
        pairs = zip(trial.values, self.directions, strict=True)
        return tuple(-y if direction == "maximize" else y for y, direction in pairs)

    def best_so_far(self) -> list[float]:
        """The best value of the first objective among each completed trial and those before it."""
        values = [trial.values[0] if trial.is_completed else math.nan for trial in self.trials]
        best: list[float] = []
        for latest in values:
            before = best[-1] if best and math.isfinite(best[-1]) else None
            best.append(latest if is_better(latest, before, self.mode) else math.nan if before is None else before)
        return best

    @property
    def common_step(self) -> int | None:
        """The last step that all trials with values have reached; None if all of them are completed."""
        begun = [trial for trial in self.trials if trial.curve.x]
        if len(self.objectives) > 1 or all(trial.is_completed for trial in begun):
            return None
        return int(min(trial.curve.x[-1] for trial in begun))

    def importances(self, index: int = 0) -> dict[str, float]:
        """The importance of each parameter for an objective, by Optuna; empty without Optuna, or with too few trials.
        Where trials were paused or pruned, all count by their values at the last step that all of them have reached."""
        try:
            import optuna
            from optuna.study import StudyDirection
        except ImportError:
            return {}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(directions=[StudyDirection[self.directions[index].upper()]])
        parse, step = optuna.distributions.json_to_distribution, self.common_step
        space = {key: parse(json.dumps(each)) for key, each in self.space.items()}
        for trial in self.trials:
            y = trial.values[index] if step is None else value(trial.curve, self.value, self.mode, step)
            if math.isfinite(y) and (trial.is_completed or step is not None):
                ranges = space | {key: parse(text) for key, text in trial.ranges.items()}
                study.add_trial(optuna.trial.create_trial(params=trial.params, distributions=ranges, value=y))
        try:
            return optuna.importance.get_param_importances(study)
        except (ValueError, RuntimeError):
            return {}


def _trial(entry: dict[str, Any], outputs: Path, settings: dict[str, Any]) -> StudyTrial:
    run = None if entry["run"] is None else StoredRun.read(outputs / entry["run"])
    curves = [Curve([], []) for _ in settings["objectives"]]
    if run is not None and run.record:
        curves = [curve_of(run.history, name) for name in settings["objectives"]]
    mode = settings["directions"][0].removesuffix("imize")
    values = [value(curve, settings["value"], mode) for curve in curves]
    state = _state(entry, run, all(map(math.isfinite, values)))
    run = run if run is not None and run.record else None
    return StudyTrial(entry["number"], entry["params"], entry.get("ranges", {}), run, state, values, curves[0])


def _state(entry: dict[str, Any], run: StoredRun | None, is_finite: bool) -> str:
    if entry.get("refusal") is not None or run is None:
        return "invalid"
    if run.state == "completed":
        return "completed" if is_finite else "failed"
    if entry.get("pruned") is not None:
        return "pruned"
    return run.state if run.record else "new"


def find_study(word: str, outputs: Path) -> Path | None:
    """The folder of the study that a word names: a folder, its name, or its id; None if it names none."""
    for folder in (expanded(word), outputs / STUDIES / word):
        if (folder / TRIALS).is_file():
            return folder
    folders = [path for path in (outputs / STUDIES).glob("*") if (path / TRIALS).is_file()]
    named = [path for path in folders if path.name.rpartition("-")[2] == word]
    return named[0] if len(named) == 1 else None
