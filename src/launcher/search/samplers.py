"""Optuna's samplers, one for each new trial."""

import hashlib
import math
import warnings
from collections.abc import Callable
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, QMCSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from launcher.errors import ConfigError
from launcher.search.settings import Settings
from launcher.search.space import Space, grid, point


def seed_of(settings: Settings, *what: object) -> int:
    """Derive a seed from `hpo.seed` and the trial's number.

    With one seed for all trials, a resumed study would repeat its first ones.
    """
    digest = hashlib.sha256("/".join(map(str, (settings.seed, *what))).encode()).hexdigest()
    return int(digest[:8], 16)


def make_sampler(settings: Settings, space: Space, *what: object) -> BaseSampler:
    """Make Optuna's sampler, whose seed depends on `what`: the trial's number and a key."""
    samplers, seed = optuna.samplers, seed_of(settings, *what)
    options: dict[str, Any] = dict(settings.sampler_options)
    makers: dict[str, Callable[[], BaseSampler]] = {
        "tpe": lambda: samplers.TPESampler(
            **{"seed": seed, "multivariate": True, "constant_liar": True} | options
        ),
        "random": lambda: samplers.RandomSampler(**{"seed": seed} | options),
        "grid": lambda: samplers.GridSampler(grid(space), **{"seed": settings.seed} | options),
        "gp": lambda: samplers.GPSampler(**{"seed": seed} | options),
        "cmaes": lambda: samplers.CmaEsSampler(
            **{"seed": seed, "warn_independent_sampling": False} | options
        ),
        "nsgaii": lambda: samplers.NSGAIISampler(**{"seed": seed, "population_size": 20} | options),
        "qmc": lambda: samplers.QMCSampler(**{"seed": settings.seed, "scramble": True} | options),
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return makers[settings.sampler]()
    except ImportError as error:
        raise ConfigError(
            f"hpo.sampler={settings.sampler}: needs {error.name or 'another library'}; pip install "
            "'torch-launcher[optuna]'."
        ) from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"hpo.sampler_options: {str(error).rstrip('.')}.") from error


class TrialSampler(BaseSampler):
    """The sampler of one trial, after `count` others were sampled.

    A value that is drawn on its own has its own seed. So a trial gets the same values if its
    search was killed after some of them were recorded.
    """

    def __init__(self, settings: Settings, space: Space, number: int, count: int):
        self.settings, self.space, self.number, self.count = settings, space, number, count
        self.sampler = make_sampler(settings, space, number)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self.sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> Space:
        if isinstance(self.sampler, QMCSampler):
            return self.space
        return self.sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Space
    ) -> dict[str, object]:
        if isinstance(self.sampler, QMCSampler):
            return quasi_random(self.sampler, self.space, self.count)
        return self.sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> object:
        sampler = make_sampler(self.settings, self.space, self.number, param_name)
        return sampler.sample_independent(study, trial, param_name, param_distribution)


def size(settings: Settings, space: Space) -> float:
    """Return the largest possible number of trials, which only a grid has."""
    if settings.sampler != "grid":
        return math.inf
    return len(settings.enqueue) + math.prod(map(len, grid(space).values()))


def quasi_random(sampler: QMCSampler, space: Space, count: int) -> dict[str, object]:
    """Return point `count` of the sequence.

    Optuna counts the points that were requested, not the trials that have them. So all points
    up to this one are drawn again.
    """
    study = optuna.create_study(sampler=sampler)
    study.add_trial(
        optuna.trial.create_trial(value=0.0, params=point(space, 0.0), distributions=space)
    )
    return [study.ask(space) for _ in range(count + 1)][-1].params
