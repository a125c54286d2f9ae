"""Hydra's composition in this process: where it looks for options, and its errors."""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from hydra import __version__, initialize_config_dir, initialize_config_module
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.version import VersionBase
from omegaconf import ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from launcher.config.compose.project import project_defaults, reject_stored
from launcher.config.messages import reason
from launcher.config.options import config_path
from launcher.config.schema.source import forget_changed_sources
from launcher.errors import ConfigError

VERSION: dict[str, Any] = {"version_base": "1.3"} if __version__.startswith("1.3.") else {}
"""Hydra 1.3 warns without `version_base`, Hydra 1.4 warns with it."""
BEFORE_SCHEMAS = SearchPathQuery(provider="schema")
NO_MAPPING = "its file should have keys, such as `_target_: my_package.Net`, and is not a mapping"
MISSING_FOLDER = r"provider=.*\n?.*is not available"
"""Hydra's warning about a folder of `hydra.searchpath` that does not exist."""
COMPOSITION_ERRORS = (
    HydraException,
    OmegaConfBaseException,
    YAMLError,
    ValueError,
    TypeError,
    AssertionError,
    OSError,
    RecursionError,
)
"""Exceptions that Hydra raises for a bad command line or a bad YAML file."""


@contextmanager
def session(
    config_dir: str | Path | None,
    config_name: str = "config",
    searchpath: list[object] | None = None,
    typed: Collection[str] = (),
) -> Iterator[None]:
    """Set Hydra up with our configuration folder and the user's, as its command line does.

    Args:
        config_dir: the user's folder, if there is one.
        config_name: the primary configuration.
        searchpath: the folders of `hydra.searchpath`. Default None: as in the file `config_name`.
        typed: the keys that the command line sets.
    """
    forget_changed_sources()
    if config_dir is not None:
        if not Path(config_dir).is_dir():
            raise ConfigError(f"--config-dir={config_dir}: there is no such folder.")
        reject_stored("--config-dir", Path(config_dir), config_name)
    with _hydra(), project_defaults(config_dir, typed):
        searched = loader().config_search_path
        if config_dir is not None:
            own = f"file://{Path(config_dir).absolute()}"
            searched.prepend("command-line", own, anchor=BEFORE_SCHEMAS)
        loader().repository.initialize_sources(searched)
        folders = _in_file(config_name) if searchpath is None else searchpath
        if folders:
            # Hydra adds them while it composes. Before, they decide which overrides are of groups.
            extended = deepcopy(searched)
            for folder in folders:
                extended.prepend("hydra.searchpath", folder, anchor=BEFORE_SCHEMAS)
            loader().repository.initialize_sources(extended)
        yield


@contextmanager
def _hydra() -> Iterator[None]:
    """Initialize Hydra, and give a program its own afterwards, if it has initialized it."""
    others = GlobalHydra.instance().hydra
    base = VersionBase.instance().getbase()
    GlobalHydra.instance().clear()
    path = config_path()
    try:
        if path.startswith("pkg://"):
            hydra: Any = initialize_config_module(path.removeprefix("pkg://"), **VERSION)
        else:
            hydra = initialize_config_dir(path, **VERSION)
        with hydra:
            yield
    finally:
        GlobalHydra.instance().clear()
        if others is not None:
            GlobalHydra.instance().initialize(others)
            if base is not None:
                VersionBase.instance().setbase(base)


def _in_file(config_name: str) -> list[object]:
    """The folders in `hydra.searchpath` of a file of the user's own."""
    if config_name == "config":
        return []
    try:
        file = loader().repository.load_config(config_name)
        folders = file and OmegaConf.select(file.config, "hydra.searchpath")
    except COMPOSITION_ERRORS:
        return []
    return list(folders) if isinstance(folders, ListConfig) else []


def loader() -> Any:
    """The config loader of the current session."""
    return GlobalHydra.instance().config_loader()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or both lines about a key that does not exist."""
    if "To append to your config use +" in str(error):
        return f"{' '.join(str(error).split())}."
    if isinstance(error, YAMLError):
        return f"The configuration cannot be read as YAML: {' '.join(str(error).split())}."
    if re.search("Invalid loaded object type|Cannot merge DictConfig with ListConfig", str(error)):
        return f"{NO_MAPPING}."
    if isinstance(error, RecursionError):
        return "its defaults lead back to itself."
    while not str(error) and error.__cause__ is not None:
        error = error.__cause__
    return f"{reason(error)}."
