"""Composing the jobs of a sweep, many of which differ in a few values alone."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import omegaconf.base
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, open_dict

from launcher.config.resolve import plain_hydra

MOST_BASES = 64
"""So many compositions of groups are kept; each takes some 300 kB."""


@dataclass
class Base:
    """A composition of groups that many jobs share."""

    config: DictConfig
    hydra: dict[str, Any]
    """Its Hydra node as plain containers, interpolations as they are written."""


@dataclass
class Composed:
    """The configuration of one job: `config` to be looked at only, since the next job's will take its place."""

    config: DictConfig
    hydra: dict[str, Any]


@dataclass
class Composer:
    """Composes the jobs of a sweep. Jobs that differ in values alone share one composition of the groups, which takes
    100 ms: the values are set in it, and put back."""

    loader: ConfigLoader
    master: DictConfig
    bases: dict[tuple[str, ...], Base] = field(default_factory=dict)
    parsed: dict[str, Override] = field(default_factory=dict)

    def compose(self, overrides: Sequence[str], index: int) -> DictConfig:
        """The configuration of one job, `hydra` node included, to keep.

        Raises:
            hydra.errors.HydraException: the overrides do not compose.
        """
        with self.composed(overrides, index) as found:
            config = deepcopy(found.config)
        with open_dict(config):
            config.hydra.job.update({key: found.hydra["job"][key] for key in ("id", "num", "override_dirname")})
            config.hydra.overrides.task = found.hydra["overrides"]["task"]
        return config

    @contextmanager
    def composed(self, overrides: Sequence[str], index: int) -> Iterator[Composed]:
        """The same, for as long as the context lasts."""
        parsed = [self._parsed(one) for one in overrides]
        values = [one for one in parsed if self._is_value(one)]
        rest = [one for one in parsed if one not in values]
        base = self._base(rest) if self._is_base(rest, values) else None
        if base is None or any(_is_elsewhere(base.config, one.key_or_group) for one in values):
            # deletions, and additions that the values refer to, depend on their order
            config = self.loader.load_sweep_config(self.master, list(overrides))
            hydra = plain_hydra(config.hydra)
            _fix_name(config)
            yield Composed(config, _noted(hydra, index, hydra["overrides"]["task"], hydra["job"]["override_dirname"]))
            return
        with _put_back(base.config, {"run", *(one.key_or_group.partition(".")[0] for one in values)}):
            ConfigLoaderImpl._apply_overrides_to_config(values, base.config)
            _fix_name(base.config)
            task = [one for one in parsed if not one.is_hydra_override()]
            rules = base.hydra["job"]["config"]["override_dirname"]
            counted = sorted(str(one.input_line) for one in task if one.key_or_group not in rules["exclude_keys"])
            dirname = rules["item_sep"].join(counted).replace("=", rules["kv_sep"])
            yield Composed(base.config, _noted(base.hydra, index, [str(one.input_line) for one in task], dirname))

    def _parsed(self, override: str) -> Override:
        if override not in self.parsed:
            (self.parsed[override],) = OverridesParser.create().parse_overrides([override])
        return self.parsed[override]

    def _base(self, rest: Sequence[Override]) -> Base:
        key = tuple(str(one.input_line) for one in rest)
        if key not in self.bases:
            if len(self.bases) >= MOST_BASES:  # a sweep over what is added
                self.bases.clear()
            config = self.loader.load_sweep_config(self.master, list(key))
            self.bases[key] = Base(config, plain_hydra(config.hydra))
        return self.bases[key]

    def _is_base(self, rest: Sequence[Override], values: Sequence[Override]) -> bool:
        """Whether `rest` can be composed before the values are set: groups, and keys added elsewhere."""
        plain = (one for one in rest if one.package is None and not one.is_hydra_override())
        added = [one.key_or_group for one in plain if one.is_add()]
        if any(_overlap(one.key_or_group, key) for one in values for key in added):
            return False
        return all(self._is_group(one) or one.key_or_group in added for one in rest)

    def _is_value(self, override: Override) -> bool:
        plain = override.type == OverrideType.CHANGE and override.package is None
        return plain and not override.is_hydra_override() and not self._is_group(override)

    def _is_group(self, override: Override) -> bool:
        is_name = isinstance(override.value(), str | list)
        repository = self.loader.repository  # type: ignore[attr-defined]
        return override.type == OverrideType.CHANGE and is_name and repository.group_exists(override.key_or_group)


@contextmanager
def parsed_once() -> Iterator[None]:
    """OmegaConf parses an interpolation at every access, which takes 0.3 ms; the jobs of a sweep have the same ones."""
    theirs = getattr(omegaconf.base, "parse", None)
    if theirs is None:
        yield
        return
    omegaconf.base.parse = lru_cache(maxsize=1000)(theirs)
    try:
        yield
    finally:
        omegaconf.base.parse = theirs


def _fix_name(config: DictConfig) -> None:
    """Put the run's name and id in place of their interpolations, each of which would hash the configuration anew.
    Where they cannot be had, validation says why."""
    try:
        name, identity = config.run.name, config.run.id
    except Exception:
        return
    with open_dict(config):
        config.run.name, config.run.id = name, identity


def _overlap(first: str, second: str) -> bool:
    """Whether one key is the other, or lies within it."""
    return f"{first}.".startswith(f"{second}.") or f"{second}.".startswith(f"{first}.")


def _is_elsewhere(config: DictConfig, key: str) -> bool:
    """Whether what is set under a key lands in another part of the configuration, by an interpolation on the way."""
    node: Any = config
    for name in key.split(".")[:-1]:
        node = node._get_node(name) if isinstance(node, DictConfig) else None
        if node is not None and node._is_interpolation():
            return True
    return False


@contextmanager
def _put_back(config: DictConfig, parts: Iterable[str]) -> Iterator[None]:
    """Let changes to these parts of a configuration last as long as the context does."""
    content = config.__dict__["_content"]
    kept = {part: content[part] for part in parts if part in content}
    content.update({part: deepcopy(node) for part, node in kept.items()})
    try:
        yield
    finally:
        content.update(kept)


def _noted(hydra: dict[str, Any], index: int, task: list[str], dirname: str) -> dict[str, Any]:
    """Hydra's node with what Hydra notes of a job in it."""
    job = {**hydra["job"], "id": str(index), "num": index, "override_dirname": dirname}
    return {**hydra, "job": job, "overrides": {**hydra["overrides"], "task": task}}
