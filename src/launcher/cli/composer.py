"""Composing the jobs of a sweep; many differ only in a few values."""

import hashlib
from collections.abc import Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf, open_dict

from launcher.config.compositions import Compositions, is_group, parse
from launcher.config.identity import fix_name
from launcher.config.session import apply_values

NOT_IN_NAME = ("tracker", "dispatch", "hydra", "paths", "device", "run.resume")


class Composer:
    """Composes the jobs of a sweep. Jobs that choose the same groups share one composition of them."""

    def __init__(self, loader: ConfigLoader, master: DictConfig):
        self.loader = loader
        self.sweep = sweep_name(master)
        self.groups = Compositions(lambda overrides: loader.load_sweep_config(master, overrides))

    def compose(self, overrides: Sequence[str], index: int) -> DictConfig:
        """The configuration of one job, with its `hydra` node.

        Raises:
            hydra.errors.HydraException: the overrides do not compose.
        """
        parsed = [parse(override) for override in overrides]
        values = [override for override in parsed if self._is_value(override)]
        rest = [override for override in parsed if override not in values]
        config = None
        if self._comes_first(rest, values):
            config = self.groups.get([str(override.input_line) for override in rest])
        if config is None or any(_is_redirected(config, override.key_or_group) for override in values):
            config = self.groups.get(list(overrides))  # the order counts
        else:
            apply_values(values, config)
            _record_overrides(config, [override for override in parsed if not override.is_hydra_override()])
        config.hydra.job.id, config.hydra.job.num = str(index), index
        if config.run.get("sweep") is None:
            with open_dict(config):
                config.run.sweep = self.sweep
        fix_name(config)
        return config

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
        is_name = isinstance(override.value(), str | list)
        return override.type == OverrideType.CHANGE and is_name and is_group(override, self.loader)


def sweep_name(master: DictConfig) -> str:
    """A name for a sweep, the same when the same command is run again; where and how its jobs run does not count."""
    words = sorted(word for word in master.hydra.overrides.task if not str(word).lstrip("+~").startswith(NOT_IN_NAME))
    return f"sweep-{hashlib.sha256(chr(10).join(words).encode()).hexdigest()[:8]}"


def _record_overrides(config: DictConfig, overrides: Sequence[Override]) -> None:
    """Record a job's overrides in `hydra`, as Hydra does when it composes."""
    rules = config.hydra.job.config.override_dirname
    kept = sorted(str(each.input_line) for each in overrides if each.key_or_group not in rules.exclude_keys)
    config.hydra.overrides.task = [str(each.input_line) for each in overrides]
    config.hydra.job.override_dirname = rules.item_sep.join(kept).replace("=", rules.kv_sep)


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
