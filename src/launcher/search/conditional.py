"""Conditional spaces: `hpo.space_function` suggests values that only some trials have."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from omegaconf import DictConfig, OmegaConf
from optuna import Trial

from launcher.config.compose.session import first_line
from launcher.errors import ConfigError


def function_of(path: str) -> Callable[[DictConfig, Trial], None]:
    """Import the user's function."""
    module, _, name = path.rpartition(".")
    try:
        function: Callable[[DictConfig, Trial], None] = getattr(import_module(module), name)
    except Exception as error:
        detail = first_line(error).rstrip(".")
        raise ConfigError(
            f"hpo.space_function={path}: cannot be imported ({detail}); e.g. my_file.suggest."
        ) from error
    return function


def suggest(path: str, config: dict[str, Any], trial: Trial) -> None:
    """Let `hpo.space_function` suggest further values of a trial."""
    function = function_of(path)
    try:
        function(OmegaConf.create(config), trial)
    except Exception as error:
        raise ConfigError(
            f"hpo.space_function={path}: {type(error).__name__}: {first_line(error)}"
        ) from error
