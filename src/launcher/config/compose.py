"""Composing the configuration in process, as the command line does it."""

from collections.abc import Sequence
from pathlib import Path

from hydra import compose as hydra_compose
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from launcher.config import identity  # noqa: F401 - registers the resolvers that the configuration uses
from launcher.config.compositions import Compositions, apply_values, is_group, normalize, parse
from launcher.config.diagnose import diagnose
from launcher.config.session import COMPOSITION_ERRORS, loader, session
from launcher.errors import ConfigError


def not_applicable(
    values: Sequence[str], overrides: Sequence[str], config_dir: str | Path | None
) -> list[str]:
    """Return the values that do not apply to the groups that all overrides choose."""
    with session(config_dir, overrides):
        parsed = [parse(normalize(override)) for override in overrides]
        groups = [str(override.input_line) for override in parsed if is_group(override, loader())]
        try:
            config = hydra_compose("config", groups)
        except COMPOSITION_ERRORS:
            return []
        return [value for value in values if not _applies(parse(normalize(value)), config)]


def _applies(override: Override, config: DictConfig) -> bool:
    try:
        apply_values([override], config)
    except COMPOSITION_ERRORS:
        return False
    return True


def compose(
    overrides: Sequence[str] = (), config_dir: str | Path | None = None, config_name: str = "config"
) -> DictConfig:
    """Compose the configuration of a command line, with its `hydra` node, without validation.

    Raises:
        ConfigError: with a message for each error of the overrides.
    """
    overrides = [normalize(override) for override in overrides]
    try:
        with session(config_dir):
            return hydra_compose(config_name, overrides, return_hydra_config=True)
    except COMPOSITION_ERRORS as error:
        if issues := diagnose(overrides, config_dir, config_name):
            raise ConfigError(*issues) from error
        with session(config_dir):
            return _compositions(config_name).config(overrides)


def explicit(
    overrides: Sequence[str], config_dir: str | Path | None, config_name: str
) -> list[str]:
    """Return the overrides with `++` for constructor arguments that the YAML files leave out.

    Raises:
        hydra.errors.HydraException: they do not compose.
    """
    with session(config_dir):
        return _compositions(config_name).explicit(overrides)


def _compositions(config_name: str) -> Compositions:
    return Compositions(
        lambda words: hydra_compose(config_name, words, return_hydra_config=True), loader()
    )
