"""Configurations of many tests, ten times faster than `compose`: those that choose the same groups
share a composition.

`tests/unit/cli/test_sweep_jobs.py` shows that they are equal to those of a command line.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig

from launcher.config.compose.composer import Command, Composer
from launcher.config.compose.overrides import typed_keys, typed_searchpath
from launcher.config.compose.session import loader, session
from launcher.config.identity.lookup import RunIndex
from launcher.config.run_config import RunConfig, check, read
from launcher.errors import ConfigError


def opened(config_dir: Path | None, overrides: Sequence[str]) -> AbstractContextManager[None]:
    """The session of a command line."""
    return session(config_dir, "config", typed_searchpath(overrides), typed_keys(overrides))


def composed(overrides: Sequence[str] = (), config_dir: Path | None = None) -> DictConfig:
    """Compose as `launcher.config.compose.composer.compose` does."""
    with opened(config_dir, overrides):
        command = Command(overrides, mode=RunMode.RUN)
        command.composer = shared_composer()
        return command.config()


def shared_composer(config_name: str = "config") -> Composer:
    """The composer of all commands that find the same folders."""
    return _composer(config_name, *(source.path for source in loader().get_sources()))


@cache
def _composer(config_name: str, *folders: str) -> Composer:
    return Composer(config_name)


def validate(config: DictConfig) -> dict[str, Any]:
    """The configuration as it is stored, or a ConfigError with its mistakes."""
    return check(config).stored


def mistakes(overrides: Sequence[str], config_dir: Path | None = None) -> list[str]:
    """The messages about a command line."""
    try:
        with opened(config_dir, overrides):
            command = Command(overrides, mode=RunMode.RUN)
            command.composer = shared_composer()
            command.run()
    except ConfigError as error:
        return error.messages
    return []


def run_of(config: DictConfig | Sequence[str], runs: RunIndex | None = None) -> RunConfig:
    """The configuration of a run, which need not be valid."""
    return read(config if isinstance(config, DictConfig) else composed(config), runs)[0]


def id_of(*overrides: str) -> str:
    return str(composed(overrides).run.id)


def sentences(*overrides: str, config_dir: Path | None = None) -> list[str]:
    """The errors of a configuration that composes."""
    try:
        validate(composed(overrides, config_dir))
    except ConfigError as error:
        return error.messages
    return []
