"""A hyperparameter search on disk, for reports and pictures."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.config.compose.session import first_line
from launcher.errors import ConfigError
from launcher.process.files import expand
from launcher.rundir.history import Curve
from launcher.runs.objective import value
from launcher.runs.stored_run import StoredRun
from launcher.runs.trials import STUDIES, Goal, Trial, best_of, find_trials

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
        try:
            import optuna
        except ImportError as error:
            raise ConfigError(
                f"{folder}: a search is read by Optuna; pip install 'torch-launcher[optuna]'."
            ) from error
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        folder = folder.absolute()
        trials = find_trials(folder.parent.parent, folder.name)
        if not trials:
            raise ConfigError(
                f"{folder}: no run in {folder.parent.parent} is a trial of this search; repeat its"
                " command."
            )
        newest, _ = trials[max(trials)]
        goal = Goal(tuple(newest["objectives"]), tuple(newest["directions"]), newest["value"])
        return cls(folder, goal, [Trial.of(data, run, goal) for data, run in trials.values()])

    def state(self, trial: Trial) -> str:
        """The state of a trial, or of its run if the trial has not ended."""
        status = trial.status(self.goal)
        return status if status != "open" or trial.stored is None else trial.stored.state

    @property
    def runs(self) -> list[StoredRun]:
        """Each run once, since equal trials share one."""
        runs = [trial.stored for trial in self.trials if trial.stored is not None]
        return list({run.label: run for run in runs}.values())

    @cached_property
    def front(self) -> list[Trial]:
        """Return the best completed trial, or for several objectives the Pareto front."""
        return best_of(self.trials, self.goal)

    @property
    def common_step(self) -> int | None:
        """Return the last step of all trials with values, or None if all are completed."""
        begun = [trial for trial in self.trials if trial.curves and trial.curves[0].x]
        is_completed = all(trial.status(self.goal) == "completed" for trial in begun)
        if len(self.goal.objectives) > 1 or is_completed:
            return None
        return int(min(trial.curves[0].x[-1] for trial in begun))

    def export(self, url: str) -> None:
        """Write the study into a storage of Optuna, such as `optuna-dashboard` reads."""
        import optuna

        try:
            study = optuna.create_study(
                storage=url, study_name=self.folder.name, directions=self._directions
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
            study.set_metric_names(list(self.goal.objectives))
        states = [STATES.get(trial.status(self.goal), "RUNNING") for trial in self.trials]
        self._add_trials(study, states, [trial.values(self.goal) for trial in self.trials])

    @property
    def _directions(self) -> list[Any]:
        """The directions, of the type that Optuna's annotations demand."""
        return [*self.goal.directions]

    def _add_trials(
        self, study: "optuna.Study", states: Sequence[str], values: Sequence[Sequence[float]]
    ) -> None:
        import optuna

        for trial, state, results in zip(self.trials, states, values, strict=True):
            curve = trial.curves[0] if trial.curves else Curve()
            study.add_trial(
                optuna.trial.create_trial(
                    state=optuna.trial.TrialState[state],
                    params=trial.params,
                    distributions=trial.distributions,
                    values=results if state == "COMPLETE" else None,
                    intermediate_values=dict(zip(map(int, curve.x), curve.y, strict=True)),
                    user_attrs={"run": trial.run},
                )
            )

    def importances(self, index: int = 0) -> dict[str, float]:
        """Return the importance of each parameter for an objective, at the common step.

        Optuna ignores paused and pruned trials, so here all trials with a value are completed.
        """
        import optuna

        step = self.common_step
        values = [
            trial.values(self.goal)[index]
            if step is None or not trial.curves
            else value(trial.curves[0], self.goal.value, self.goal.mode, step)
            for trial in self.trials
        ]
        states = ["COMPLETE" if math.isfinite(each) else "FAIL" for each in values]
        study = optuna.create_study(direction=self._directions[index])
        self._add_trials(study, states, [[each] for each in values])
        # This hides the warning that there are few trials.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return optuna.importance.get_param_importances(study)


def find_study(word: str, outputs: Path) -> Path | None:
    """Find the folder of the study that a folder, a name or an id names, or None."""
    folders = [path for path in (outputs / STUDIES).glob("*") if path.is_dir()]
    folder = expand(word)
    if folder.is_dir() and folder.absolute().parent.name == STUDIES:
        return folder
    named = [path for path in folders if word in (path.name, path.name.rpartition("-")[2])]
    return named[0] if len(named) == 1 else None
