"""Optuna's samplers, one for each new trial."""

import hashlib
import warnings
from typing import Any

from optuna import samplers
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler

from launcher.errors import ConfigError
from launcher.search.study_settings import Settings

SAMPLERS: dict[str, tuple[type[BaseSampler], dict[str, object]]] = {
    "tpe": (samplers.TPESampler, {"multivariate": True, "constant_liar": True}),
    "random": (samplers.RandomSampler, {}),
    "gp": (samplers.GPSampler, {}),
}
"""Optuna's class of each sampler, and our arguments."""


def seed_of(settings: Settings, number: int) -> int:
    """Derive a seed from `hpo.seed` and the trial's number.

    With one seed for all trials, a resumed study would repeat its first ones.
    """
    digest = hashlib.sha256(f"{settings.seed}/{number}".encode()).hexdigest()
    return int(digest[:8], 16)


def make_sampler(settings: Settings, number: int = 0) -> BaseSampler:
    """Make Optuna's sampler for the trial of this number."""
    make, defaults = SAMPLERS[settings.sampler]
    seed = {"seed": seed_of(settings, number)}
    options: dict[str, Any] = seed | defaults | dict(settings.sampler_options)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return make(**options)
    except ImportError as error:
        raise ConfigError(
            f"hpo.sampler={settings.sampler}: needs {error.name or 'another library'}; pip install "
            "'torch-launcher[optuna]'."
        ) from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"hpo.sampler_options: {str(error).rstrip('.')}.") from error
