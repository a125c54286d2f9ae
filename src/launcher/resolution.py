"""The values of a configuration, all interpolations resolved, with a sentence for each that cannot be had."""

import re
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.identity import choices, join
from launcher.options import composed_from, options_with
from launcher.wording import hint

UNRESOLVED = object()
"""Stands for a value that could not be had; its own sentence says why, so no other complains of it."""


REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def resolve(config: DictConfig) -> tuple[dict[str, Any], list[str]]:
    """The configuration as plain containers, Hydra's node left out, and the sentences of what is missing in
    it."""
    faults: list[str] = []
    return _resolve_dict(config, "", faults, config), faults


def references(config: Any, path: str = "") -> dict[str, str]:
    """Which other key a key takes its value from: `{"model.vocab_size": "data.vocab_size"}`."""
    found: dict[str, str] = {}
    for key, value in config.items() if isinstance(config, dict) else ():
        here = join(path, key)
        if isinstance(value, str) and (match := REFERENCE.fullmatch(value)):
            found[here] = match[1]
        found |= references(value, here)
    return found


def _resolve_dict(node: DictConfig, path: str, faults: list[str], root: DictConfig) -> dict[str, Any]:
    keys = [key for key in node if path or key != "hydra"]
    if not path:  # run.id hashes everything: it cannot be had while anything else fails, so it comes last
        keys.sort(key=lambda key: key == "run")
    return {str(key): _resolve(node, key, join(path, key), faults, root) for key in keys}


def _resolve(parent: DictConfig | ListConfig, key: Any, path: str, faults: list[str], root: DictConfig) -> Any:
    if OmegaConf.is_missing(parent, key):
        faults.append(f"{path}: needs a value; e.g. {path}=...")
        return UNRESOLVED
    try:
        value = parent[key]
    except OmegaConfBaseException as error:
        if not (path.startswith("run.") and faults):
            faults.append(_unresolved(parent, key, path, root, error))
        return UNRESOLVED
    if isinstance(value, DictConfig):
        return None if value._is_none() else _resolve_dict(value, path, faults, root)
    if isinstance(value, ListConfig):
        if value._is_none():
            return None
        return [_resolve(value, index, f"{path}.{index}", faults, root) for index in range(len(value))]
    return value


def _unresolved(parent: Any, key: Any, path: str, root: DictConfig, error: Exception) -> str:
    """A sentence for an interpolation that leads nowhere, e.g. to a key that the chosen data does not
    have."""
    written = str(OmegaConf.to_container(parent, resolve=False)[key])  # type: ignore[index]
    for reference in REFERENCE.findall(written):
        if OmegaConf.select(root, reference, default=UNRESOLVED, throw_on_missing=False) is not UNRESOLVED:
            continue
        group, _, name = reference.partition(".")
        chosen = choices(root).get(group)
        if chosen is None or not name:
            near = hint(reference, _dotted_keys(root), "${{{}}}")
            return f"{path}={written}: there is no {reference}{near}"
        fitting = [f"{group}={option}" for option in options_with(composed_from(root), group, name)]
        way = f"choose {', '.join(fitting)} or " if fitting else ""
        return f"{path}={written}: {group}={chosen} has no {name}; {way}set {path}=... outright."
    return f"{path}={written}: cannot be resolved: {str(error).splitlines()[0]}"


def _dotted_keys(root: DictConfig) -> list[str]:
    return [
        join(str(key), name) for key in root if isinstance(root._get_node(key), DictConfig) for name in root[key] or ()
    ]
