"""Hydra's grammar of overrides, and applying their values to a composed configuration."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from launcher.config.identity.difference import is_within
from launcher.config.options import COLLECTIONS, main_folder
from launcher.config.schema.signature import signature_of
from launcher.errors import ConfigError

TEXT_KEYS = ("run.id", "run.name", "run.tag", "run.init_from")
"""Keys whose values are names, also if they look like numbers."""
PLAIN_VALUES = re.compile(r"(choice\(|)([\w.+\-, ]+)(\)|)")
"""A value without quotes, or the values of a sweep."""
SPACE = "hpo.space"
BARE_RANGE = re.compile(r":\s*\w+\(")
OPEN = ("dispatch.sbatch", "tracker.wandb.settings")
"""Nodes that take any key, with `+` or without."""


def normalize(override: str) -> str:
    """Return an override in the form that Hydra accepts.

    Numbers among the values of `TEXT_KEYS` get quotes: an id 12345e67 and a tag 1.10 are text.
    `~hooks` becomes `hooks=[]`, since Hydra deletes only groups with a single option. Ranges become
    texts. Keys of `OPEN` are added.
    """
    key, equals, value = override.partition("=")
    name = key.lstrip("+")
    if not equals:
        group = override.removeprefix("~")
        return f"{group}=[]" if group != override and group in COLLECTIONS else override
    if is_within(name, (SPACE,)):
        return _normalize_space(name.removeprefix(SPACE).lstrip("."), value)
    if is_within(name, OPEN):
        return f"++{name}={value}"
    if name in TEXT_KEYS and (values := PLAIN_VALUES.fullmatch(value)):
        opening, listed, closing = values.groups()
        texts = ",".join(map(_quote_number, listed.split(",")))
        return f"{key}={opening}{texts}{closing}"
    return override


def _quote_number(value: str) -> str:
    """Return a value with quotes if Hydra's grammar or YAML reads it as a number."""
    word = value.strip()
    is_id = word[:1].isdigit() and word.replace("_", "").isalnum()
    try:
        read = parse(f"key={word}").value()
    except HydraException:
        return value
    is_number = isinstance(read, int | float) and not isinstance(read, bool)
    return f"'{word}'" if is_id or is_number else value


def _normalize_space(key: str, value: str) -> str:
    """Return `hpo.space.KEY=RANGE` or `hpo.space={KEY:'RANGE'}` in the form that Hydra accepts.

    As written, the first would be a sweep, and the second would set keys that the configuration
    does not have.
    """
    if not key:
        if BARE_RANGE.search(value):
            raise ConfigError(
                f"{SPACE}={value}: each range in it needs quotes; or set the keys one by one, e.g."
                f" {SPACE}.optimizer.lr=interval(0.1,0.2)."
            )
        return f"++{SPACE}={value}"
    if not value.startswith(("[", "'", '"')):
        value = "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return f"++{SPACE}={{{key}:{value}}}"


@cache
def parse(override: str) -> Override:
    """Parse an override as Hydra does; bad syntax is an OverrideParseException."""
    return _parser().parse_override(override)


@cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


def typed_keys(words: Iterable[str]) -> list[str]:
    """Return the keys whose values overrides set; a chosen option (`model=mlp`) sets none."""
    parts = [word.lstrip("+~").partition("=") for word in words]
    return [
        key
        for key, _, value in parts
        if "." in key or value.startswith("{") or not (main_folder() / key).is_dir()
    ]


def is_setting(override: str) -> bool:
    """Return whether an override sets a key of `hpo`, or chooses its options."""
    return re.match(r"[+~]*hpo\b", override) is not None


def typed_searchpath(words: Iterable[str]) -> list[object] | None:
    """Return the folders of `hydra.searchpath`, or None if no override sets that."""
    texts = [word for word in words if word.startswith("hydra.searchpath=")]
    if not texts:
        return None
    try:
        value = parse(texts[0]).value()
    except (HydraException, ValueError):
        return []
    return value if isinstance(value, list) else []


def is_group(override: Override, loader: ConfigLoader) -> bool:
    """Return whether an override chooses (or adds, or deletes) an option of a config group."""
    # The method `get_group_options` of the loader parses the main configuration each time.
    repository: Any = loader.repository  # type: ignore[attr-defined]
    exists = repository.group_exists(override.key_or_group)
    return bool(exists) and not isinstance(override.value(), dict)


def record_overrides(overrides: Sequence[Override], config: DictConfig) -> None:
    """Record all overrides of a command line in Hydra's node, as Hydra does."""
    listed = [override for override in overrides if not override.is_hydra_override()]
    config.hydra.overrides.task = [str(override.input_line) for override in listed]
    # Since Hydra 1.4, it follows the list.
    if not OmegaConf.is_interpolation(config.hydra.job, "override_dirname"):
        rules = config.hydra.job.config.override_dirname
        named = [each for each in listed if each.key_or_group not in rules.exclude_keys]
        text = rules.item_sep.join(sorted(str(override.input_line) for override in named))
        config.hydra.job.override_dirname = text.replace("=", rules.kv_sep)


def apply_value(override: Override, config: DictConfig) -> None:
    """Change, add or delete a value of a composed configuration, as Hydra does.

    A key that its node does not have is added without a `+` if the node's `_target_` takes it.

    Raises:
        hydra.errors.HydraException, omegaconf.errors.OmegaConfBaseException: it does not apply.
    """
    override = _with_plus(override, config)
    key, value = override.key_or_group, override.value()
    if override.package is not None:
        raise ConfigCompositionException(f"there is no config group {key}.")
    if override.is_delete():
        _delete(override, config)
        return
    if override.is_add() and not isinstance(value, dict | list) and _value(config, key) is not None:
        raise ConfigCompositionException("the key exists already.")
    is_added = override.is_add() or override.is_force_add()
    parent = key.rpartition(".")[0]
    # `OmegaConf.update` would replace it by an empty node before it fails.
    if not is_added and parent and not OmegaConf.is_config(OmegaConf.select(config, parent)):
        raise ConfigCompositionException(f"{parent} has no keys.")
    OmegaConf.update(config, key, value, merge=True, force_add=is_added)


def parameters(node: DictConfig) -> list[str]:
    """The arguments that a node's `_target_` takes."""
    try:
        return signature_of(node.get("_target_")).names
    except OmegaConfBaseException:
        return []


def _with_plus(override: Override, config: DictConfig) -> Override:
    """Return an override with `++` if its key is missing and may be added.

    That is so if the `_target_` of the innermost node takes the key, or if the override makes a
    part of a name or of null (`model.loss._target_=...` in place of `model.loss=mse`).
    """
    path, _, last = override.key_or_group.rpartition(".")
    if override.type != OverrideType.CHANGE or override.package is not None or not path:
        return override
    name = last
    while path and (node := select(config, path)) is None:
        path, _, name = path.rpartition(".")
    if isinstance(node, DictConfig) and path:
        is_absent = name not in node or (last == "_target_" and node[name] is None)
        is_new = is_absent and (name in parameters(node) or name == "_partial_")
    else:
        is_new = name == "_target_" and isinstance(node, str)
    return parse(f"++{override.input_line}") if is_new else override


def select(config: DictConfig, path: str) -> Any:
    return OmegaConf.select(config, path, throw_on_missing=False, throw_on_resolution_failure=False)


def _delete(override: Override, config: DictConfig) -> None:
    key, expected = override.key_or_group, override.value()
    present = _value(config, key)
    if present is None or (expected is not None and expected != present):
        is_other = "is not set" if present is None else f"is {present}"
        raise ConfigCompositionException(f"cannot be deleted, since it {is_other}.")
    parent, _, name = key.rpartition(".")
    with open_dict(config):
        del (OmegaConf.select(config, parent) if parent else config)[name]


def _value(config: DictConfig, key: str) -> object:
    return OmegaConf.select(config, key, throw_on_missing=False)
