"""Optuna's samplers, one for each new trial."""

import hashlib
import math
import warnings
from collections.abc import Callable
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler

from launcher.errors import ConfigError
from launcher.search.search_space import Space, grid
from launcher.search.study_settings import Settings


def seed_of(settings: Settings, number: int) -> int:
    """Derive a seed from `hpo.seed` and the trial's number.

    With one seed for all trials, a resumed study would repeat its first ones.
    """
    digest = hashlib.sha256(f"{settings.seed}/{number}".encode()).hexdigest()
    return int(digest[:8], 16)


def make_sampler(settings: Settings, space: Space, number: int = 0) -> BaseSampler:
    """Make Optuna's sampler for the trial of this number."""
    samplers, seed = optuna.samplers, seed_of(settings, number)
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


def size(settings: Settings, space: Space) -> float:
    """Return the largest possible number of trials, which only a grid has."""
    if settings.sampler != "grid":
        return math.inf
    return len(settings.enqueue) + math.prod(map(len, grid(space).values()))
