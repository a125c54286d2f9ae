"""Hydra set up in process: its search path, its loader, and what it raises."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir, initialize_config_module
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from launcher.config.options import config_path

VERSION_BASE = "1.3"
COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, ValueError, AssertionError)
"""What Hydra raises at a bad command line or a bad YAML file."""


@contextmanager
def session(config_dir: str | Path | None, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Hydra set up with our folder of configuration and the user's further ones, as its command line does
    it."""
    path = config_path()
    if path.startswith("pkg://"):
        hydra: Any = initialize_config_module(path.removeprefix("pkg://"), version_base=VERSION_BASE)
    else:
        hydra = initialize_config_dir(path, version_base=VERSION_BASE)
    folders: list[Any] = [f"file://{Path(config_dir).absolute()}"] if config_dir else []
    for given in (one for one in overrides if one.startswith("hydra.searchpath=")):
        folders += OverridesParser.create().parse_override(given).value()  # type: ignore[arg-type]
    with hydra:
        found = loader()
        for folder in folders:
            found.config_search_path.prepend("command-line", folder, anchor=SearchPathQuery(provider="schema"))
        found.repository.initialize_sources(found.config_search_path)
        yield


def loader() -> Any:
    """Hydra's config loader of the present session."""
    return GlobalHydra.instance().config_loader()


def first_line(error: BaseException) -> str:
    """A sentence for an error that no other is known for: what Hydra says, on one line."""
    if isinstance(error, YAMLError):
        return f"The configuration cannot be read as YAML: {' '.join(str(error).split())}."
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{lines[0].rstrip('.')}." if lines else f"{type(error).__name__}."
