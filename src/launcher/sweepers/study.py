"""An Optuna study in memory, rebuilt from the runs for each new trial."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import distribution_to_json, json_to_distribution
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
Extend = Callable[[Params, optuna.Trial], None]


@dataclass(frozen=True)
class Asked:
    """The values of a new trial."""

    params: Params
    attrs: dict[str, Any] = field(default_factory=dict)
    """What the sampler stores with the trial."""
    ranges: dict[str, str] = field(default_factory=dict)
    """The ranges of values outside the common space, as Optuna's JSON."""


class EndedTrial(FrozenTrial):
    """A trial that no longer changes, so its deep copy is shallow: Optuna copies each trial that is added to a study,
    which took most of the time of `ask`."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "EndedTrial":
        return copy(self)


class Study:
    """Answers what to try next, and which trial to stop.

    Args:
        name: of the study.
        space: the ranges that all trials share.
        extend: suggests further values of a trial, from those of the space.
    """

    def __init__(self, name: str, settings: Settings, space: Space, extend: Extend | None = None):
        self.name, self.settings, self.space, self.extend = name, settings, space, extend
        self._frozen: dict[int, tuple[Any, FrozenTrial]] = {}
        optuna.logging.set_verbosity(optuna.logging.ERROR)

    def ask(self, trials: Sequence[Trial], fixed: Params | None = None) -> Asked:
        """The values of the trial after `trials`.

        Args:
            fixed: values of some keys (`hpo.enqueue`).
        """
        if self.settings.sampler == "qmc" and fixed is None:
            count = sum(trial.origin == "sampled" for trial in trials)
            return Asked(as_typed(quasi_random(self.settings, self.space, count), self.space))
        study = self.rebuilt(trials)
        if fixed is not None:
            study.enqueue_trial(fixed)
        asked = study.ask(self.space)
        if self.extend is not None:
            self.extend(as_typed(asked.params, self.space), asked)
        trial = study.get_trials(deepcopy=False)[-1]
        ranges = {key: distribution_to_json(trial.distributions[key]) for key in trial.params if key not in self.space}
        return Asked(as_typed(trial.params, trial.distributions), dict(trial.system_attrs), ranges)

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
        """An Optuna study with these trials.

        Args:
            storage: where it is stored; None: in memory.
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
        frozen = optuna.trial.create_trial(
            state=STATES[status],
            values=trial.values(self.settings) if status == "completed" else None,
            params=trial.params,
            distributions=self.space | {key: json_to_distribution(text) for key, text in trial.ranges.items()},
            system_attrs=trial.attrs,
            user_attrs={} if trial.run is None else {"run": trial.run},
            intermediate_values={int(x): y for x, y in points if x <= until},
        )
        if frozen.state.is_finished():
            frozen.__class__ = EndedTrial
        return frozen


def as_typed(params: Params, space: Space) -> Params:
    return {key: rounded(params[key], space[key]) for key in [*space, *params] if key in params}
