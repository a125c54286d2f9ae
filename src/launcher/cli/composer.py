"""Composes the jobs of a sweep, most of which differ only in a few values."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf, open_dict

from launcher.config.compositions import Composition, Compositions, dirname, is_group, parse, task_words
from launcher.config.identity import fix_name, with_name
from launcher.config.session import with_values
from launcher.config.written import Written

NOT_IN_NAME = ("tracker", "dispatch", "hydra", "paths", "device", "run.resume")


class Composer:
    """Composes the jobs of a sweep. Jobs that choose the same groups share one composition of them."""

    def __init__(self, loader: ConfigLoader, master: DictConfig):
        self.loader = loader
        self.sweep = sweep_name(master)
        self.groups = Compositions(lambda overrides: loader.load_sweep_config(master, overrides))
        self._choosing: dict[str, bool] = {}

    def written(self, overrides: Sequence[str], index: int) -> Written:
        """The configuration of one job as plain containers. Jobs share the nodes that are equal.

        Raises:
            hydra.errors.HydraException: the overrides do not compose.
        """
        parsed, values, base = self._on_groups(overrides)
        if base is None or not all(_is_settable(base, override) for override in values):
            config = self.compose(overrides, index)
            return Written.of(config)
        tree = base.tree
        for override in values:
            tree = _with_value(tree, override.key_or_group.split("."), override.value())
        hydra, run = tree["hydra"], tree["run"]
        job = hydra["job"] | {"id": str(index), "num": index, "override_dirname": dirname(parsed, hydra["job"])}
        hydra = hydra | {"overrides": hydra["overrides"] | {"task": task_words(parsed)}, "job": job}
        run = run if run.get("sweep") is not None else run | {"sweep": self.sweep}
        return with_name(Written(tree | {"hydra": hydra, "run": run}, partial(self.compose, overrides, index)))

    def compose(self, overrides: Sequence[str], index: int) -> DictConfig:
        """The same as a new DictConfig."""
        parsed, values, base = self._on_groups(overrides)
        if base is None:
            config = self.groups.copy(list(overrides))
        else:
            config = with_values(base.config, values, parsed)
        config.hydra.job.id, config.hydra.job.num = str(index), index
        if config.run.get("sweep") is None:
            with open_dict(config):
                config.run.sweep = self.sweep
        fix_name(config)
        return config

    def _on_groups(self, overrides: Sequence[str]) -> tuple[list[Override], list[Override], Composition | None]:
        """All overrides, those that set values, and what the others compose to; None: their order matters."""
        parsed = [parse(override) for override in overrides]
        values = [override for override in parsed if self._is_value(override)]
        rest = [override for override in parsed if override not in values]
        if not self._comes_first(rest, values):
            return parsed, values, None
        base = self.groups.get([str(override.input_line) for override in rest])
        is_redirected = any(_is_redirected(base.config, override.key_or_group) for override in values)
        return parsed, values, None if is_redirected else base

    def _comes_first(self, rest: Sequence[Override], values: Sequence[Override]) -> bool:
        """Whether `rest` can be applied before the values: it chooses groups, and adds keys elsewhere."""
        plain = (each for each in rest if each.package is None and not each.is_hydra_override())
        added = [each.key_or_group for each in plain if each.is_add()]
        if any(_overlap(each.key_or_group, key) for each in values for key in added):
            return False
        return all(self._chooses(each) or each.key_or_group in added for each in rest)

    def _is_value(self, override: Override) -> bool:
        plain = override.type == OverrideType.CHANGE and override.package is None
        return plain and not override.is_hydra_override() and not self._chooses(override)

    def _chooses(self, override: Override) -> bool:
        if override.type != OverrideType.CHANGE or not isinstance(override.value(), str | list):
            return False
        key = override.key_or_group
        if key not in self._choosing:
            self._choosing[key] = is_group(override, self.loader)
        return self._choosing[key]


def sweep_name(master: DictConfig) -> str:
    """A name for a sweep: the same when the command is repeated, wherever and however its jobs run."""
    words = sorted(word for word in master.hydra.overrides.task if not str(word).lstrip("+~").startswith(NOT_IN_NAME))
    return f"sweep-{hashlib.sha256(chr(10).join(words).encode()).hexdigest()[:8]}"


def _is_settable(base: Composition, override: Override) -> bool:
    """Whether an override replaces one plain value by another, under an existing key of an untyped node."""
    *parents, name = override.key_or_group.split(".")
    node: Any = base.config
    old: Any = base.tree
    for parent in parents:
        if not isinstance(node, DictConfig) or parent not in node or OmegaConf.is_interpolation(node, parent):
            return False
        node, old = node[parent], old[parent]
    if not isinstance(node, DictConfig) or OmegaConf.get_type(node) is not dict or name not in node:
        return False
    return not isinstance(override.value(), dict) and not isinstance(old[name], dict)


def _with_value(tree: Mapping[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy of the tree with another value under nested keys; it shares all other nodes."""
    first, *rest = keys
    return {**tree, first: _with_value(tree[first], rest, value) if rest else value}


def _overlap(first: str, second: str) -> bool:
    """Whether one key is the other, or is inside it."""
    return f"{first}.".startswith(f"{second}.") or f"{second}.".startswith(f"{first}.")


def _is_redirected(config: DictConfig, key: str) -> bool:
    """Whether a key's parent is an interpolation, so that setting the key changes another node."""
    node: Any = config
    for name in key.split(".")[:-1]:
        if not isinstance(node, DictConfig) or name not in node:
            return False
        if OmegaConf.is_interpolation(node, name):
            return True
        node = node[name]
    return False
