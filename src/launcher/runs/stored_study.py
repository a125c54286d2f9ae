"""A hyperparameter search on disk, for reports and pictures."""

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.config.compose.session import first_line
from launcher.config.schema.metric_direction import is_better
from launcher.errors import ConfigError, needing
from launcher.process.files import expand
from launcher.runs.stored_run import StoredRun
from launcher.runs.trials import STUDIES, Goal, Trial, find_trials

if TYPE_CHECKING:
    import optuna

STATES = {
    "completed": "COMPLETE",
    "pruned": "PRUNED",
    "paused": "PRUNED",
    "failed": "FAIL",
    "invalid": "FAIL",
}
"""States of Optuna. All other trials are running."""


@dataclass
class StoredStudy:
    folder: Path
    goal: Goal
    trials: list[Trial]

    @classmethod
    def read(cls, folder: Path) -> "StoredStudy":
        with needing(
            f"{folder}: a search is read by Optuna; pip install 'torch-launcher[optuna]'."
        ):
            import optuna
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        folder = folder.absolute()
        trials = find_trials(folder.parent.parent, folder.name)
        if not trials:
            raise ConfigError(
                f"{folder}: no run in {folder.parent.parent} is a trial of this search; repeat its"
                " command."
            )
        newest, _ = trials[max(trials)]
        goal = Goal(newest["objective"], newest["direction"], newest["value"])
        return cls(folder, goal, [Trial.of(data, run, goal) for data, run in trials.values()])

    def state(self, trial: Trial) -> str:
        """The state of a trial, or of its run if the trial has not ended."""
        status = trial.status
        if status != "open" or trial.stored is None:
            return status
        return trial.stored.state

    @property
    def runs(self) -> list[StoredRun]:
        """Each run once, since equal trials share one."""
        runs = [trial.stored for trial in self.trials if trial.stored is not None]
        return list({run.label: run for run in runs}.values())

    def best_so_far(self) -> list[float]:
        """Return the best value up to each completed trial."""
        best: list[float] = []
        for trial in self.trials:
            is_completed = trial.status == "completed"
            latest = trial.value if is_completed else math.nan
            before = best[-1] if best else math.nan
            previous = before if math.isfinite(before) else None
            best.append(latest if is_better(latest, previous, self.goal.mode) else before)
        return best

    @property
    def common_step(self) -> int | None:
        """Return the last step of all trials with values, or None if all are completed."""
        begun = [trial for trial in self.trials if trial.curve.x]
        if all(trial.status == "completed" for trial in begun):
            return None
        return int(min(trial.curve.x[-1] for trial in begun))

    def export(self, url: str) -> None:
        """Write the study into a storage of Optuna, such as `optuna-dashboard` reads."""
        import optuna

        try:
            study = optuna.create_study(
                storage=url, study_name=self.folder.name, direction=self.goal.direction
            )
        except optuna.exceptions.DuplicatedStudyError as error:
            raise ConfigError(
                f"--optuna={url}: has a study {self.folder.name} already; choose another URL, or"
                " delete that study."
            ) from error
        except Exception as error:
            raise ConfigError(
                f"--optuna={url}: cannot be written ({first_line(error).rstrip('.')}); e.g."
                " sqlite:///study.db."
            ) from error
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([self.goal.objective])
        states = [STATES.get(trial.status, "RUNNING") for trial in self.trials]
        self._add_trials(study, states, [trial.value for trial in self.trials])

    def _add_trials(
        self, study: "optuna.Study", states: Sequence[str], values: Sequence[float]
    ) -> None:
        import optuna

        for trial, state, result in zip(self.trials, states, values, strict=True):
            study.add_trial(
                optuna.trial.create_trial(
                    state=optuna.trial.TrialState[state],
                    params=trial.params,
                    distributions=trial.distributions,
                    value=result if state == "COMPLETE" else None,
                    intermediate_values=trial.curve.by_step(),
                    user_attrs={"run": trial.run},
                )
            )

    def importances(self) -> dict[str, float]:
        """Return the importance of each parameter for the objective, at the common step.

        Optuna ignores paused and pruned trials, so here all trials with a value are completed.
        """
        import optuna

        until = math.inf if self.common_step is None else self.common_step
        values = [trial.value_until(until) for trial in self.trials]
        states = ["COMPLETE" if math.isfinite(each) else "FAIL" for each in values]
        study = optuna.create_study(direction=self.goal.direction)
        self._add_trials(study, states, values)
        # The warning that there are few trials is hidden.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return optuna.importance.get_param_importances(study)


def find_study(word: str, outputs: Path) -> Path | None:
    """Find the folder of the study that a folder, a name or an id names, or None."""
    folders = [path for path in (outputs / STUDIES).glob("*") if path.is_dir()]
    folder = expand(word)
    if os.path.isdir(folder) and folder.absolute().parent.name == STUDIES:
        return folder
    named = [path for path in folders if word in (path.name, path.name.rpartition("-")[2])]
    return named[0] if len(named) == 1 else None
