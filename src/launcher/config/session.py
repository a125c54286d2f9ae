"""Runs Hydra in process."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, cast

from hydra import __version__, initialize_config_dir, initialize_config_module
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.types import RunMode, TaskFunction
from omegaconf import ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from launcher.config.compositions import parse
from launcher.config.identity import register_hydra
from launcher.config.messages import reason
from launcher.config.options import config_path

VERSION: dict[str, Any] = {"version_base": "1.3"} if __version__.startswith("1.3.") else {}
"""Hydra 1.3 warns without `version_base`, Hydra 1.4 warns with it."""
COMPOSITION_ERRORS = (
    HydraException,
    OmegaConfBaseException,
    YAMLError,
    ValueError,
    TypeError,
    AssertionError,
)
"""Exceptions that Hydra raises for a bad command line or a bad YAML file."""


@contextmanager
def session(
    config_dir: str | Path | None, overrides: Sequence[str] = (), config_name: str | None = None
) -> Iterator[None]:
    """Set Hydra up with our configuration folder and the user's, as its command line does.

    The folders of `hydra.searchpath` come from the overrides or from the file `config_name`.
    """
    own: list[object] = [f"file://{Path(config_dir).absolute()}"] if config_dir else []
    typed = [parse(text).value() for text in overrides if text.startswith("hydra.searchpath=")]
    path = config_path()
    if path.startswith("pkg://"):
        hydra: Any = initialize_config_module(path.removeprefix("pkg://"), **VERSION)
    else:
        hydra = initialize_config_dir(path, **VERSION)
    with hydra:
        register_hydra()
        _search(own + [folder for folders in typed for folder in cast(list[str], folders)])
        if config_name is not None and not typed and (named := _searchpath(config_name)):
            _search(named)
        yield


def _search(folders: Sequence[object]) -> None:
    """Let the current session find options in these folders."""
    config_loader = loader()
    for folder in folders:
        anchor = SearchPathQuery(provider="schema")
        config_loader.config_search_path.prepend("command-line", folder, anchor=anchor)
    config_loader.repository.initialize_sources(config_loader.config_search_path)


def _searchpath(config_name: str) -> list[object]:
    """The folders in `hydra.searchpath` of a file, none if it does not exist or is not a list."""
    try:
        file = loader().repository.load_config(config_name)
        folders = file and OmegaConf.select(file.config, "hydra.searchpath")
    except COMPOSITION_ERRORS:
        return []
    return list(folders) if isinstance(folders, ListConfig) else []


def run_application(task: TaskFunction, arguments: Namespace, values: Sequence[str]) -> None:
    """Run or sweep as `hydra.main` does, in the current session.

    `values` are overrides that a callback applies to a run, in place of Hydra.
    """
    application: Any = GlobalHydra.instance().hydra
    name, overrides = arguments.config_name, arguments.overrides
    if not arguments.multirun:
        mode = ["hydra.mode=RUN"] if arguments.run else []
        composed = [text for text in overrides if text not in values]
        try:
            application.run(config_name=name, task_function=task, overrides=[*composed, *mode])
            return
        except (AssertionError, HydraException) as error:
            if not (_is_about_mode(error, overrides) and _sets_multirun(name, overrides)):
                raise
    mode = ["hydra.mode=MULTIRUN"]
    application.multirun(config_name=name, task_function=task, overrides=[*overrides, *mode])


def _is_about_mode(error: Exception, overrides: Sequence[str]) -> bool:
    """Return whether Hydra rejected a run that might be a sweep, before a job started."""
    is_swept = any(parse(override).is_sweep_override() for override in overrides)
    return is_swept or isinstance(error, AssertionError) or "hydra.mode changed" in str(error)


def _sets_multirun(name: str, overrides: Sequence[str]) -> bool:
    """Return whether the configuration itself requests a sweep."""
    try:
        return bool(
            loader().load_configuration(name, list(overrides), RunMode.MULTIRUN).hydra.mode
            == RunMode.MULTIRUN
        )
    except COMPOSITION_ERRORS:
        return False


def loader() -> Any:
    """The config loader of the current session."""
    return GlobalHydra.instance().config_loader()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or both lines about a key that does not exist."""
    if "To append to your config use +" in str(error):
        return f"{' '.join(str(error).split())}."
    if isinstance(error, YAMLError):
        return f"The configuration cannot be read as YAML: {' '.join(str(error).split())}."
    return f"{reason(error)}."


def returned(result: JobReturn) -> Any:
    """Return the value that a job returned, or raise its exception."""
    try:
        # Hydra prints a line about a failed job before it raises the job's exception.
        with redirect_stderr(StringIO()):
            return result.return_value
    except BaseException as error:
        return error
