"""Hydra in process, and the only module that uses private names of Hydra and OmegaConf."""

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import __version__, initialize_config_dir, initialize_config_module

# Public Hydra applies values only together with composing the groups, which takes 100 ms.
from hydra._internal.config_loader_impl import ConfigLoaderImpl

# Hydra documents its flags, but has no public parser for them.
from hydra._internal.utils import get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.types import TaskFunction
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from launcher.config.messages import reason
from launcher.config.options import config_path

VERSION: dict[str, Any] = {"version_base": "1.3"} if __version__.startswith("1.3.") else {}
"""Hydra 1.3 warns without `version_base`, Hydra 1.4 warns with it."""
BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
"""The class of `hydra/sweeper=basic`. Hydra has no public name for it, and shows only the class."""
COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, ValueError, AssertionError)
"""What Hydra raises for a bad command line or a bad YAML file."""


@contextmanager
def session(config_dir: str | Path | None, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Set Hydra up with our config folder and the user's, as its command line does."""
    path = config_path()
    if path.startswith("pkg://"):
        hydra: Any = initialize_config_module(path.removeprefix("pkg://"), **VERSION)
    else:
        hydra = initialize_config_dir(path, **VERSION)
    folders: list[Any] = [f"file://{Path(config_dir).absolute()}"] if config_dir else []
    for override in overrides:
        if override.startswith("hydra.searchpath="):
            folders += OverridesParser.create().parse_override(override).value()  # type: ignore[arg-type]
    with hydra:
        config_loader = loader()
        for folder in folders:
            anchor = SearchPathQuery(provider="schema")
            config_loader.config_search_path.prepend("command-line", folder, anchor=anchor)
        config_loader.repository.initialize_sources(config_loader.config_search_path)
        yield


def run_application(
    task: TaskFunction, config_name: str, overrides: Sequence[str], config_dir: str | None, multirun: bool
) -> None:
    """What `hydra.main` does for a command line whose mode is known: the configuration is composed once.

    Raises:
        AssertionError: not `multirun`, but the configuration sets `hydra.mode` to MULTIRUN.
    """
    with session(config_dir):
        application: Any = GlobalHydra.instance().hydra
        if multirun:
            mode = ["hydra.mode=MULTIRUN"]
            application.multirun(config_name=config_name, task_function=task, overrides=[*overrides, *mode])
        else:
            application.run(config_name=config_name, task_function=task, overrides=list(overrides))


def loader() -> Any:
    """The config loader of the current session."""
    return GlobalHydra.instance().config_loader()


def first_line(error: BaseException) -> str:
    """The first line of an error's message, as a sentence."""
    if isinstance(error, YAMLError):
        return f"The configuration cannot be read as YAML: {' '.join(str(error).split())}."
    return f"{reason(error)}."


def flag_parser() -> ArgumentParser:
    """The parser of Hydra's command line."""
    parser: ArgumentParser = get_args_parser()
    return parser


def apply_values(overrides: Sequence[Override], config: DictConfig) -> None:
    """Change, add or delete values of a composed configuration.

    Raises:
        hydra.errors.HydraException: an override does not apply.
    """
    ConfigLoaderImpl._apply_overrides_to_config(list(overrides), config)


def returned(result: JobReturn) -> Any:
    """What a job returned, or the exception that it raised."""
    # The public `return_value` raises the exception of a failed job, and prints a line on stderr first.
    return result._return_value
