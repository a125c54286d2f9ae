"""Optuna's samplers, one for each new trial."""

import hashlib
import math
import warnings
from collections.abc import Callable
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, QMCSampler

from launcher.errors import ConfigError
from launcher.sweepers.settings import Settings
from launcher.sweepers.space import Space, grid, point


def seed_of(settings: Settings, number: int) -> int:
    """Each trial has its own seed: with one seed for all, a resumed study would repeat its first trials."""
    digest = hashlib.sha256(f"{settings.seed}/{number}".encode()).hexdigest()
    return int(digest[:8], 16)


def make_sampler(settings: Settings, space: Space, number: int) -> BaseSampler:
    """The sampler for trial `number`.

    Raises:
        ConfigError: the sampler does not support the options or the space, or needs another library.
    """
    samplers, seed = optuna.samplers, seed_of(settings, number)
    own: dict[str, Any] = dict(settings.sampler_options)
    makers: dict[str, Callable[[], BaseSampler]] = {
        "tpe": lambda: samplers.TPESampler(**{"seed": seed, "multivariate": True, "constant_liar": True} | own),
        "random": lambda: samplers.RandomSampler(**{"seed": seed} | own),
        "grid": lambda: samplers.GridSampler(grid(space), **{"seed": settings.seed} | own),
        "gp": lambda: samplers.GPSampler(**{"seed": seed} | own),
        "cmaes": lambda: samplers.CmaEsSampler(**{"seed": seed, "warn_independent_sampling": False} | own),
        "nsgaii": lambda: samplers.NSGAIISampler(**{"seed": seed, "population_size": 20} | own),
        "qmc": lambda: samplers.QMCSampler(**{"seed": settings.seed, "scramble": True} | own),
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


def size(settings: Settings, space: Space) -> float:
    """The largest possible number of trials: for a grid, its points and the enqueued trials; otherwise infinite."""
    if settings.sampler != "grid":
        return math.inf
    return len(settings.enqueue) + math.prod(map(len, grid(space).values()))


def quasi_random(settings: Settings, space: Space, count: int) -> dict[str, Any]:
    """Point `count` of the sequence. Optuna counts the points in its study. We do not keep that, so all points up to
    this one are drawn again."""
    sampler = make_sampler(settings, space, count)
    assert isinstance(sampler, QMCSampler)
    study = optuna.create_study(sampler=sampler)
    study.add_trial(optuna.trial.create_trial(value=0.0, params=point(space, 0.0), distributions=space))
    return [study.ask(space) for _ in range(count + 1)][-1].params
