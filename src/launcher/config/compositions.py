"""Compose the config groups first, then apply the values: shared by sweeps and by the diagnosis of a command line."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cache, cached_property
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, Sweep
from hydra.errors import HydraException
from omegaconf import DictConfig

from launcher.config.tree import leaves
from launcher.config.written import plain
from launcher.errors import ConfigError

COLLECTIONS = ("hooks", "tracker")
"""Groups with any number of named parts."""
QUOTED_KEYS = ("run.id", "run.name", "run.tag", "run.init_from")
SPACE = "hpo.space"
OPEN = "dispatch.sbatch"
"""A node that takes any key, with `+` or without."""
MAX_CACHED = 64
"""At most this many group compositions are cached, about 300 kB each."""


def normalize(override: str) -> str:
    """An override as Hydra takes it. Names that start with a digit get quotes: an id like 12345e67 would be a number;
    `~hooks` becomes `hooks=[]`, since Hydra deletes only groups with a single option; `hpo.space` becomes texts; keys
    of `dispatch.sbatch` are added.

    Raises:
        ConfigError: `hpo.space` cannot be parsed.
    """
    key, equals, value = override.partition("=")
    if equals and f"{key.lstrip('+')}.".startswith(f"{SPACE}."):
        return _normalize_space(key.lstrip("+").removeprefix(SPACE).lstrip("."), value)
    if equals and f"{key.lstrip('+')}.".startswith(f"{OPEN}."):
        return f"++{override.lstrip('+')}"
    if key in QUOTED_KEYS and value[:1].isdigit() and value.replace("_", "").isalnum():
        return f"{key}='{value}'"
    return f"{override[1:]}=[]" if override.removeprefix("~") in COLLECTIONS and override[0] == "~" else override


def _normalize_space(key: str, value: str) -> str:
    """`hpo.space.KEY=RANGE` or `hpo.space={KEY:RANGE}` as Hydra takes it. As written, the first would be a sweep, and
    the second would set keys that the configuration does not have."""
    if key:
        text = value if value.startswith(("[", "'", '"')) else _range_text(value)
        return f"++{SPACE}={{{key}:{text}}}"
    try:
        ranges = dict(parse(f"{SPACE}={value}").value())  # type: ignore[arg-type]
        texts = [f"{name}:{_range_text(each)}" for name, each in leaves(ranges).items()]
    except (HydraException, TypeError, ValueError):
        raise ConfigError(
            f"{SPACE}={value}: cannot be read; e.g. {SPACE}.optimizer.lr=interval(0.1,0.2), or "
            f"{SPACE}={{optimizer.lr:'choice(0.1,0.2)'}}."
        ) from None
    return f"++{SPACE}={{{','.join(texts)}}}"


def _range_text(value: Any) -> str:
    """
    Raises:
        TypeError: a range whose text Hydra does not keep.
    """
    if isinstance(value, list):
        return f"[{','.join(map(_range_text, value))}]"
    if isinstance(value, IntervalSweep):
        interval = f"interval({value.start},{value.end})"
        text = f"int({interval})" if isinstance(value.start, int) else interval
        value = f"tag({','.join([*sorted(value.tags), text])})"
    elif isinstance(value, Sweep):
        raise TypeError(value)
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(value)


@cache
def parse(override: str) -> Override:
    """
    Raises:
        hydra.errors.OverrideParseException: bad syntax.
    """
    return _parser().parse_override(override)


@cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


def is_group(override: Override, loader: Any) -> bool:
    """Whether an override chooses (or adds, or deletes) an option of a config group."""
    return not isinstance(override.value(), dict) and loader.repository.group_exists(override.key_or_group)


def task_words(overrides: Sequence[Override]) -> list[str]:
    """The overrides that `hydra.overrides.task` lists."""
    return [str(override.input_line) for override in overrides if not override.is_hydra_override()]


def dirname(overrides: Sequence[Override], job: Mapping[str, Any]) -> str:
    """`hydra.job.override_dirname`, as Hydra composes it."""
    rules = job["config"]["override_dirname"]
    own = [override for override in overrides if override.key_or_group not in rules["exclude_keys"]]
    text: str = rules["item_sep"].join(sorted(task_words(own)))
    return text.replace("=", rules["kv_sep"])


class Composition:
    """What some overrides compose to. It must not be changed."""

    def __init__(self, config: DictConfig):
        self.config = config

    @cached_property
    def tree(self) -> dict[str, Any]:
        return plain(self.config)


class Compositions:
    """Composing takes 100 ms, a copy of an earlier composition 10 ms."""

    def __init__(self, compose: Callable[[list[str]], DictConfig]):
        self._compose = compose
        self._cached: dict[tuple[str, ...], Composition] = {}

    def get(self, overrides: list[str]) -> Composition:
        key = tuple(overrides)
        if key not in self._cached:
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            self._cached[key] = Composition(self._compose(overrides))
        return self._cached[key]

    def copy(self, overrides: list[str]) -> DictConfig:
        """What these overrides compose to; the caller may change it."""
        return deepcopy(self.get(overrides).config)
