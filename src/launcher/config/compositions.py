"""Compose the config groups first, then apply the values: shared by sweeps and by the diagnosis of a command line."""

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

COLLECTIONS = ("hooks", "tracker")
"""Groups with any number of named parts."""
QUOTED_KEYS = ("run.id", "run.name", "run.tag", "run.init_from")
MAX_CACHED = 64
"""At most this many group compositions are cached, about 300 kB each."""


def normalize(override: str) -> str:
    """An override as Hydra takes it. Names of digits get quotes, since an id like 12345e67 would be read as a number;
    `~hooks` becomes `hooks=[]`, since Hydra deletes only groups with a single option."""
    key, _, value = override.partition("=")
    if key in QUOTED_KEYS and value[:1].isdigit() and value.replace("_", "").isalnum():
        return f"{key}='{value}'"
    return f"{override[1:]}=[]" if override.removeprefix("~") in COLLECTIONS and override[0] == "~" else override


@cache
def parse(override: str) -> Override:
    """
    Raises:
        hydra.errors.OverrideParseException: bad syntax.
    """
    return OverridesParser.create().parse_override(override)


def is_group(override: Override, loader: Any) -> bool:
    """Whether an override chooses (or adds, or deletes) an option of a config group."""
    return not isinstance(override.value(), dict) and loader.repository.group_exists(override.key_or_group)


class Compositions:
    """Composing takes 100 ms, a copy of an earlier composition 10 ms."""

    def __init__(self, compose: Callable[[list[str]], DictConfig]):
        self._compose = compose
        self._cached: dict[tuple[str, ...], DictConfig] = {}

    def get(self, overrides: list[str]) -> DictConfig:
        """What these overrides compose to; the caller may change it."""
        key = tuple(overrides)
        if key not in self._cached:
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            self._cached[key] = self._compose(overrides)
        return deepcopy(self._cached[key])
