"""An Optuna study in memory, rebuilt from the runs for each new trial."""

from collections.abc import Sequence
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from launcher.sweepers.samplers import make_sampler, quasi_random
from launcher.sweepers.settings import Settings
from launcher.sweepers.space import Space, rounded
from launcher.sweepers.trials import Trial

STATES = {
    "open": TrialState.RUNNING,
    "paused": TrialState.PRUNED,
    "pruned": TrialState.PRUNED,
    "completed": TrialState.COMPLETE,
    "failed": TrialState.FAIL,
    "invalid": TrialState.FAIL,
}


Params = dict[str, Any]


class Study:
    """Answers what to try next, and which trial to stop.

    Args:
        name: of the study.
        space: what a trial has a value of.
    """

    def __init__(self, name: str, settings: Settings, space: Space):
        self.name, self.settings, self.space = name, settings, space
        self._frozen: dict[int, tuple[Any, FrozenTrial]] = {}
        optuna.logging.set_verbosity(optuna.logging.ERROR)

    def ask(
        self, trials: Sequence[Trial], fixed: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The values of the next trial, and what the sampler wants to remember with them.

        Args:
            fixed: values of some keys (`hpo.enqueue`).
        """
        if self.settings.sampler == "qmc" and fixed is None:
            count = sum(trial.origin == "sampled" for trial in trials)
            return self._rounded(quasi_random(self.settings, self.space, count)), {}
        study = self.rebuilt(trials)
        if fixed is not None:
            study.enqueue_trial(fixed)
        study.ask(self.space)
        trial = study.get_trials(deepcopy=False)[-1]
        return self._rounded(trial.params), dict(trial.system_attrs)

    def should_stop(self, trial: Trial, trials: Sequence[Trial], step: int) -> bool:
        """Whether the pruner would stop a running trial after the value of a step."""
        settings, pruners = self.settings, optuna.pruners
        options = {"n_startup_trials": settings.startup_trials, "n_warmup_steps": settings.warmup_steps}
        pruner = (
            pruners.MedianPruner(**options)
            if settings.pruner == "median"
            else pruners.PercentilePruner(settings.percentile, **options)
        )
        done = [each for each in trials if each.status(settings) == "completed"]
        return pruner.prune(self.rebuilt(done), self._freeze(trial, step))

    def rebuilt(self, trials: Sequence[Trial], storage: str | None = None) -> optuna.Study:
        """
        Args:
            storage: None: in memory.
        """
        study = optuna.create_study(
            study_name=self.name,
            storage=storage,
            directions=list(map(StudyDirection.__getitem__, map(str.upper, self.settings.directions))),
            sampler=None if storage else make_sampler(self.settings, self.space, len(trials)),
        )
        study.add_trials([self._cached(trial) for trial in trials])
        return study

    def _cached(self, trial: Trial) -> FrozenTrial:
        key = trial.status(self.settings), trial.step, len(trial.curves[0].x) if trial.curves else 0
        if trial.number not in self._frozen or self._frozen[trial.number][0] != key:
            self._frozen[trial.number] = key, self._freeze(trial)
        return self._frozen[trial.number][1]

    def _freeze(self, trial: Trial, until: float = float("inf")) -> FrozenTrial:
        """A trial as Optuna sees it.

        Args:
            until: leave out the values after this step.
        """
        status = trial.status(self.settings)
        curve = trial.curves[0] if trial.curves and len(self.settings.objectives) == 1 else None
        points = zip(curve.x, curve.y, strict=True) if curve is not None else ()
        return optuna.trial.create_trial(
            state=STATES[status],
            values=trial.values(self.settings) if status == "completed" else None,
            params=trial.params,
            distributions=self.space,
            system_attrs=trial.attrs,
            user_attrs={} if trial.run is None else {"run": trial.run},
            intermediate_values={int(x): y for x, y in points if x <= until},
        )

    def _rounded(self, params: dict[str, Any]) -> dict[str, Any]:
        return {key: rounded(params[key], self.space[key]) for key in self.space}
