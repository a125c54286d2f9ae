"""Everything that is wrong with a command line.

Hydra stops at the first fault. `diagnose` goes on: it takes the overrides one by one, leaves out each that
fails with a sentence, and has the rest validated.
"""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from launcher.config.grid import expand
from launcher.config.messages import hint, nearest, show
from launcher.config.schema import validate
from launcher.config.session import COMPOSITION_ERRORS, first_line, loader, session
from launcher.config.signature import signature
from launcher.config.source import NotThere
from launcher.errors import ConfigError


def diagnose(
    overrides: Sequence[str],
    config_dir: str | Path | None = None,
    config_name: str = "config",
    multirun: bool = False,
) -> list[str]:
    """A sentence for each fault of a command line: syntax, names, options, and what `schema.validate` says
    of the rest.

    Empty if nothing is found.
    """
    if config_dir is not None and not Path(config_dir).is_dir():
        return [f"--config-dir={config_dir}: there is no such folder."]
    faults: list[str] = []
    readable = _readable(overrides, multirun, faults)
    wanted = [one for one in readable if not one.startswith("hydra.searchpath=")]
    try:
        jobs = expand(OverridesParser.create().parse_overrides(wanted))
    except ConfigError as error:
        return faults + error.sentences
    seen: set[str] = set()
    bad_keys: set[str] = set()
    with session(config_dir, readable):
        for job in jobs:
            if not job or not seen.issuperset(job):
                seen.update(job)
                _examine(config_name, job, faults, bad_keys)
    return list(dict.fromkeys(faults))


def _readable(overrides: Sequence[str], multirun: bool, faults: list[str]) -> list[str]:
    parser = OverridesParser.create()
    readable = []
    for text in overrides:
        try:
            parsed = parser.parse_override(text)
        except (HydraException, ValueError) as error:
            faults.append(_unreadable(text, error))
            continue
        if parsed.is_sweep_override() and not multirun:
            key = parsed.get_key_element()
            value = text.partition("=")[2]
            faults.append(f"{text}: several values make a sweep, which needs -m; a list is {key}=[{value}].")
        else:
            readable.append(text)
    return readable


def _unreadable(text: str, error: Exception) -> str:
    if "=" not in text and not text.startswith("~"):
        return f"{text}: should be KEY=VALUE or GROUP=OPTION."
    key, _, value = text.partition("=")
    detail = first_line(error).rstrip(".") if isinstance(error, OverrideParseException) else str(error)
    return f"{text}: cannot be read ({detail}); quote a text with special characters: '{key}=\"{value}\"'."


def _try(config_name: str, overrides: Sequence[str]) -> DictConfig | Exception:
    try:
        return hydra_compose(config_name, list(overrides), return_hydra_config=True)
    except COMPOSITION_ERRORS as error:
        return error


def _broken_base(config_name: str, error: Exception) -> str:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file == config_name:
        return f"--config-name={config_name}: there is no such configuration."
    return first_line(error)


def _examine(config_name: str, overrides: Sequence[str], faults: list[str], bad_keys: set[str]) -> None:
    """Take the overrides of one job one by one, groups first, since keys depend on them; then validate what
    is good. A key in `bad_keys` is left out: another job of the sweep has told of it."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    groups = [one for one in parsed if _is_group(one)]
    config = _compose_groups(config_name, groups, faults)
    if config is None:
        return
    for one in parsed:
        if one in groups or one.key_or_group in bad_keys:
            continue
        before = deepcopy(config)  # a failing override may have changed something
        try:
            ConfigLoaderImpl._apply_overrides_to_config([one], config)
        except COMPOSITION_ERRORS as error:
            config = before
            bad_keys.add(one.key_or_group)
            faults.append(f"{one.input_line}: {_bad_key(one, config, error)}")
    try:
        validate(config)
    except ConfigError as error:
        faults += error.sentences


def _is_group(override: Override) -> bool:
    return not isinstance(override.value(), dict) and loader().repository.group_exists(override.key_or_group)


def _compose_groups(config_name: str, groups: Sequence[Override], faults: list[str]) -> DictConfig | None:
    """The configuration with those choices of groups that compose; None if it does not compose with none of them."""
    known = []
    for one in groups:
        if fault := _unknown_option(one):
            faults.append(f"{one.input_line}: {fault}")
        else:
            known.append(str(one.input_line))
    config = _try(config_name, known)
    if isinstance(config, DictConfig):
        return config
    config, good = _try(config_name, []), list[str]()
    if not isinstance(config, DictConfig):
        faults.append(_broken_base(config_name, config))
        return None
    for text in known:
        more = _try(config_name, [*good, text])
        if isinstance(more, DictConfig):
            config, good = more, [*good, text]
        else:
            faults.append(f"{text}: {_bad_option(more)}")
    return config


def _unknown_option(override: Override) -> str | None:
    """Why a choice of a group cannot be meant, told without composing it; None if there are such options."""
    group, value = override.key_or_group, override.value()
    if value is None:
        return None if override.is_delete() else f"to leave the group out, write ~{group}."
    options = loader().repository.get_group_options(group)
    listed = f"{group} has {', '.join(options)}"
    for option in map(str, value if isinstance(value, list) else [value]):
        if option in options or "/" in option or "$" in option:
            continue
        if near := nearest(option, options):
            meant = _rewritten(override, group).replace(option, near)
            return f"no option {option}; did you mean {meant}? ({listed})"
        return f"no option {option}; {listed}."
    return None


def _bad_option(error: Exception) -> str:
    """Why an option of a group does not compose."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        folder, _, name = error.missing_cfg_file.rpartition("/")
        near = hint(name, error.options or (), folder + "/{}")
        return f"it asks for {error.missing_cfg_file}, which there is not{near}"
    return first_line(error)


def _bad_key(override: Override, config: DictConfig, error: Exception) -> str:
    """Why an override of a value does not apply: no such key, or it is there already, or what has it has no
    keys."""
    key = override.key_or_group
    if override.is_add() and _select(config, key) is not None:
        return "the key is there already; write it without the +."
    parts = key.split(".")
    for index, part in enumerate(parts):
        path = ".".join(parts[:index])
        node = _select(config, path) if path else config
        if not isinstance(node, DictConfig):
            return f"{path} is {show(node)}, and has no keys."
        if part not in node:
            return _unknown_key(override, config) if not path else _unknown_part(override, path, part, node)
    return first_line(error.__cause__ or error)


def _select(config: DictConfig, path: str) -> Any:
    return OmegaConf.select(config, path, throw_on_missing=False, throw_on_resolution_failure=False)


def _unknown_key(override: Override, config: DictConfig) -> str:
    """For a first part that is neither a group nor a key at the top."""
    name, dot, rest = override.key_or_group.partition(".")
    keys = [str(key) for key in config if key != "hydra"]
    groups = [group for group in loader().list_groups("") if group != "hydra"]
    if near := nearest(name, keys + groups):
        return f"no key {name}; did you mean {_rewritten(override, near + dot + rest)}?"
    parts = {key: node for key in keys if isinstance(node := _select(config, key), DictConfig)}
    if below := nearest(name, [str(one) for node in parts.values() for one in node]):
        owners = [key for key, node in parts.items() if below in node and not OmegaConf.is_interpolation(node, below)]
        meant = " or ".join(_rewritten(override, f"{owner}.{below}{dot}{rest}") for owner in owners)
        return f"no key {name}; did you mean {meant}?"
    return f"no key {name}; a run has {', '.join(keys)}."


def _unknown_part(override: Override, path: str, part: str, node: DictConfig) -> str:
    """For a key that its node does not have, though the node's `_target_` may take it."""
    keys, taken = [str(key) for key in node], _parameters(node)
    if part in taken and not override.is_delete():
        return f"the key is not in {path} yet; add it with +{override.input_line}."
    if near := nearest(part, keys) or nearest(part, taken):
        rest = override.key_or_group.removeprefix(f"{path}.{part}")
        return f"no key {path}.{part}; did you mean {_rewritten(override, f'{path}.{near}{rest}')}?"
    return f"no key {path}.{part}; {path} has {', '.join(keys)}."


def _rewritten(override: Override, key: str) -> str:
    _, equals, value = str(override.input_line).partition("=")
    return f"{'~' if override.is_delete() else ''}{key}{equals}{value}"


def _parameters(node: DictConfig) -> list[str]:
    try:
        spec = signature(str(node.get("_target_", "")))
    except NotThere:
        return []
    return spec.names if spec else []
