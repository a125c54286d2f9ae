"""A hyperparameter search on disk: trials in Optuna's journal, results in the runs."""

import json
import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from launcher.config.metric_direction import is_better
from launcher.errors import ConfigError
from launcher.rundir.files import expanded, fsync_file
from launcher.rundir.history import Curve
from launcher.runs.objective import Which, curve_of, pareto_front, value
from launcher.runs.stored_run import StoredRun

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.storages.journal import JournalFileBackend

STUDIES, JOURNAL = "studies", "journal.log"
Value = str | int | float
DIGITS = 6
"""Significant digits of a sampled number, so that people can read and type the override."""
LOCK_GRACE = 10
"""Seconds after which the lock of a journal is taken from a process that was killed while it wrote
a line."""
DAMAGES = (ValueError, KeyError, TypeError, AttributeError, AssertionError, IndexError)
"""Errors that Optuna raises for a damaged journal."""


def backend(path: Path) -> "JournalFileBackend":
    """Open a study's journal. Its lock works on NFS."""
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    return JournalFileBackend(str(path), JournalFileOpenLock(str(path), LOCK_GRACE))


def repair(path: Path) -> None:
    """Remove an incomplete operation from the end of a journal, left by a kill or a full disk.

    Optuna skips it when it reads, but would append the next operation to it. It had no effect,
    since an operation counts only once its line is durable.
    """
    from optuna.storages.journal import JournalFileOpenLock

    if not _damage(path):
        return
    lock = JournalFileOpenLock(str(path), LOCK_GRACE)
    lock.acquire()
    try:
        # It is read again, since another program may have written until now.
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size - _damage(path))
        fsync_file(path)
    finally:
        lock.release()


def _damage(path: Path) -> int:
    """Return the bytes at the end of a journal that are not complete operations."""
    lines = path.read_bytes().splitlines(keepends=True)
    count = 0
    while lines and not _is_operation(lines[-1]):
        count += len(lines.pop())
    return count


def _is_operation(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and "op_code" in json.loads(line)
    except (ValueError, TypeError):
        return False


def rounded(value: Value, among: "BaseDistribution") -> Value:
    """Round a sampled value for the command line, within its range."""
    from optuna.distributions import FloatDistribution

    if not isinstance(among, FloatDistribution):
        return value
    short = float(f"{value:.{DIGITS}g}")
    return min(max(short, among.low), among.high)


def params_of(trial: "optuna.trial.FrozenTrial") -> dict[str, object]:
    return {key: rounded(value, trial.distributions[key]) for key, value in trial.params.items()}


@dataclass
class StudyTrial:
    """A trial and its run. `run` is None if its configuration was invalid or it has not started."""

    number: int
    params: dict[str, Any]
    distributions: dict[str, Any]
    run: StoredRun | None
    state: str
    values: list[float]
    """The value of each objective, or NaN."""
    curve: Curve
    """The first objective by step."""

    @property
    def is_completed(self) -> bool:
        return self.state == "completed"


@dataclass
class StoredStudy:
    folder: Path
    objectives: list[str]
    directions: list[str]
    value: Which
    trials: list[StudyTrial]

    @classmethod
    def read(cls, folder: Path) -> "StoredStudy":
        try:
            import optuna
        except ImportError as error:
            raise ConfigError(
                f"{folder}: a search is read by Optuna; pip install 'torch-launcher[optuna]'."
            ) from error
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        path = folder / JOURNAL
        try:
            storage = optuna.storages.JournalStorage(backend(path))
            study = optuna.load_study(study_name=None, storage=storage)
            trials = study.get_trials(deepcopy=False)
        except (OSError, *DAMAGES) as error:
            raise ConfigError(
                f"{path}: is empty or damaged; repeat the command of the search."
            ) from error
        objectives = study.metric_names or ["value"] * len(study.directions)
        directions = [direction.name.lower() for direction in study.directions]
        which = study.user_attrs.get("value", "best")
        made = cls(folder, objectives, directions, which, [])
        outputs = folder.absolute().parent.parent
        made.trials = [
            made._trial(trial, outputs)
            for trial in trials
            if {"run", "refusal"} & trial.user_attrs.keys()
        ]
        return made

    def _trial(self, stored: "optuna.trial.FrozenTrial", outputs: Path) -> StudyTrial:
        label = stored.user_attrs.get("run")
        run = None if label is None else StoredRun.read(outputs / label)
        run = run if run is not None and run.record else None
        curves = [Curve() for _ in self.objectives]
        if run is not None:
            curves = [curve_of(run.history, name) for name in self.objectives]
        values = [value(curve, self.value, self.mode) for curve in curves]
        state = _state(stored.user_attrs, run, all(map(math.isfinite, values)))
        return StudyTrial(
            stored.number, params_of(stored), stored.distributions, run, state, values, curves[0]
        )

    @property
    def runs(self) -> list[StoredRun]:
        """Each run once, since equal trials share one."""
        return list(
            {trial.run.label: trial.run for trial in self.trials if trial.run is not None}.values()
        )

    @property
    def params(self) -> list[str]:
        return list(dict.fromkeys(key for trial in self.trials for key in trial.params))

    @property
    def mode(self) -> Literal["min", "max"]:
        """The direction of the first objective."""
        return "max" if self.directions[0] == "maximize" else "min"

    @cached_property
    def front(self) -> list[StudyTrial]:
        """Return the best completed trial, or for several objectives the Pareto front."""
        done = [trial for trial in self.trials if trial.is_completed]
        costs = {trial.number: self._costs(trial) for trial in done}
        front = pareto_front(costs.values())
        best = [trial for trial in done if costs[trial.number] in front]
        return best[:1] if len(self.objectives) == 1 else best

    def _costs(self, trial: StudyTrial) -> tuple[float, ...]:
        pairs = zip(trial.values, self.directions, strict=True)
        return tuple(-y if direction == "maximize" else y for y, direction in pairs)

    def best_so_far(self) -> list[float]:
        """Return the best value of the first objective up to each completed trial."""
        values = [trial.values[0] if trial.is_completed else math.nan for trial in self.trials]
        best: list[float] = []
        for latest in values:
            before = best[-1] if best and math.isfinite(best[-1]) else None
            best.append(
                latest
                if is_better(latest, before, self.mode)
                else math.nan
                if before is None
                else before
            )
        return best

    @property
    def common_step(self) -> int | None:
        """Return the last step of all trials with values, or None if all are completed."""
        begun = [trial for trial in self.trials if trial.curve.x]
        if len(self.objectives) > 1 or all(trial.is_completed for trial in begun):
            return None
        return int(min(trial.curve.x[-1] for trial in begun))

    def as_optuna(self, step: int | None = None, index: int | None = None) -> "optuna.Study":
        """Make a study in memory for Optuna's analyses, which ignore paused and pruned trials.

        In it, all trials with a value are completed, and the others have failed.

        Args:
            step: use the values of the first objective until this step. Default None: the current
                values.
            index: index of the only objective. Default None: all.
        """
        import optuna

        directions = [
            optuna.study.StudyDirection[direction.upper()] for direction in self.directions
        ]
        study = optuna.create_study(
            directions=directions if index is None else directions[index : index + 1]
        )
        for trial in self.trials:
            values = (
                trial.values if step is None else [value(trial.curve, self.value, self.mode, step)]
            )
            values = values if index is None else values[index : index + 1]
            is_known = all(map(math.isfinite, values))
            study.add_trial(
                optuna.trial.create_trial(
                    state=optuna.trial.TrialState.COMPLETE
                    if is_known
                    else optuna.trial.TrialState.FAIL,
                    params=trial.params,
                    distributions=trial.distributions,
                    values=values if is_known else None,
                    intermediate_values=dict(
                        zip(map(int, trial.curve.x), trial.curve.y, strict=True)
                    ),
                )
            )
        return study

    def importances(self, index: int = 0) -> dict[str, float]:
        """Return the importance of each parameter for an objective, at the common step."""
        import optuna

        # This hides the warning that there are few trials.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return optuna.importance.get_param_importances(self.as_optuna(self.common_step, index))


def _state(decided: dict[str, object], run: StoredRun | None, is_finite: bool) -> str:
    if decided.get("refusal") is not None:
        return "invalid"
    if run is None:
        return "new"
    if run.state == "completed":
        return "completed" if is_finite else "failed"
    return "pruned" if decided.get("pruned") is not None else run.state


def find_study(word: str, outputs: Path) -> Path | None:
    """Find the folder of the study that a folder, a name or an id names, or None."""
    for folder in (expanded(word), outputs / STUDIES / word):
        if (folder / JOURNAL).is_file():
            return folder
    folders = [path for path in (outputs / STUDIES).glob("*") if (path / JOURNAL).is_file()]
    named = [path for path in folders if path.name.rpartition("-")[2] == word]
    return named[0] if len(named) == 1 else None
