"""A hyperparameter search on disk, for reports and pictures."""

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from launcher.errors import ConfigError
from launcher.process.files import expand
from launcher.runs.objective import value
from launcher.runs.stored_run import StoredRun
from launcher.runs.trials import STUDIES, Goal, Trial, best_of, find_trials


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

    def importances(self, index: int = 0) -> dict[str, float]:
        """Return the importance of each parameter for an objective, at the common step.

        Optuna ignores paused and pruned trials, so here all trials with a value are completed.
        """
        import optuna

        step, goal = self.common_step, self.goal
        study = optuna.create_study(direction=goal.directions[index])  # type: ignore[arg-type]
        for trial in self.trials:
            result = trial.values(goal)[index]
            if step is not None and trial.curves:
                result = value(trial.curves[0], goal.value, goal.mode, step)
            if math.isfinite(result):
                study.add_trial(
                    optuna.trial.create_trial(
                        params=trial.params, distributions=trial.distributions, value=result
                    )
                )
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
