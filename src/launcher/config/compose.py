"""Composing the configuration in process, as the command line does it."""

from collections.abc import Sequence
from pathlib import Path

from hydra import compose as hydra_compose
from omegaconf import DictConfig

from launcher.config import identity  # noqa: F401 - registers the resolvers that the configuration uses
from launcher.config.compositions import normalize
from launcher.config.diagnose import diagnose
from launcher.config.session import COMPOSITION_ERRORS, first_line, session
from launcher.errors import ConfigError


def compose(
    overrides: Sequence[str] = (), config_dir: str | Path | None = None, config_name: str = "config"
) -> DictConfig:
    """The configuration of a command line, with its `hydra` node; it is not validated.

    Raises:
        ConfigError: with a sentence for each fault of the overrides.
    """
    overrides = [normalize(override) for override in overrides]
    with session(config_dir):
        try:
            return hydra_compose(config_name, overrides, return_hydra_config=True)
        except COMPOSITION_ERRORS as error:
            faults = diagnose(overrides, config_dir, config_name, in_session=True)
            raise ConfigError(*(faults or [first_line(error)])) from error
