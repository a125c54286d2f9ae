"""Identities that name the same run although they differ.

They may differ by keys whose value is the code's default, or by declared renames. `canonical`
leaves out every key that has its default, so two identities are equivalent exactly if their
canonical trees are equal. A value that changed is never equivalent, even if the default changed to
the same value: only the identity that has the new value loses the key.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from launcher.config.sections import SECTIONS, CompileSettings, section
from launcher.config.signature import REQUIRED, UNKNOWN, Signature, signature
from launcher.config.source import NotFound
from launcher.config.tree import get, join

RENAMES: dict[str, dict[str, str]] = {}
"""Renames of Launcher's own keys and classes, by the version that made them. Version 0.1 is the
first."""

OPTIONAL_GROUPS = ("scheduler",)
"""Groups that a run does without if they are null."""

INSTANTIATION_DEFAULTS = {"_partial_": False, "_recursive_": True, "_convert_": "none"}

SETTINGS: dict[str, type] = {**SECTIONS, "trainer.compile": CompileSettings}


def identity_key(identity: Mapping[str, object], renames: Mapping[str, str]) -> str:
    """A text that two identities share exactly if they are equivalent.

    Args:
        identity: as `run.json` stores it.
        renames: the project's own (`identity_renames`): dotted keys and targets, old name to new
            name.
    """
    text = json.dumps(canonical(identity, renames), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def canonical(identity: Mapping[str, object], renames: Mapping[str, str]) -> dict[str, object]:
    """An identity under its new names, without the keys that have their defaults."""
    tree: Any = identity
    for table in (*RENAMES.values(), renames):
        tree = renamed(tree, table)
    reduced: dict[str, object] = _reduced(tree, "")
    return reduced


def renamed(identity: Mapping[str, object], renames: Mapping[str, str]) -> dict[str, object]:
    """An identity with the keys and the targets renamed, and whatever is below them.

    A key that would replace another key keeps its name.
    """
    tree: dict[str, Any] = _with_targets(identity, renames) if renames else dict(identity)
    for old, new in renames.items():
        parent, _, name = old.rpartition(".")
        node = get(tree, parent) if parent else tree
        if isinstance(node, dict) and name in node and not _has(tree, new):
            _put(tree, new, node.pop(name))
    return tree


def _with_targets(tree: object, renames: Mapping[str, str]) -> Any:
    if isinstance(tree, Mapping):
        values = {key: _with_targets(value, renames) for key, value in tree.items()}
        if isinstance(target := values.get("_target_"), str):
            values["_target_"] = _new_target(target, renames)
        return values
    return [_with_targets(item, renames) for item in tree] if isinstance(tree, list) else tree


def _new_target(target: str, renames: Mapping[str, str]) -> str:
    for old, new in renames.items():
        if target == old or target.startswith(f"{old}."):
            target = new + target[len(old) :]
    return target


def _has(tree: Mapping[str, object], path: str) -> bool:
    parent, _, name = path.rpartition(".")
    node = get(tree, parent) if parent else tree
    return isinstance(node, Mapping) and name in node


def _put(tree: dict[str, Any], path: str, value: object) -> None:
    *parents, name = path.split(".")
    for key in parents:
        if not isinstance(tree.get(key), dict):
            tree[key] = {}
        tree = tree[key]
    tree[name] = value


def _reduced(tree: object, path: str) -> Any:
    if isinstance(tree, list):
        return [_reduced(item, join(path, index)) for index, item in enumerate(tree)]
    if not isinstance(tree, Mapping):
        return tree
    defaults = _defaults(tree, path)
    kept = {
        key: value
        for key, value in tree.items()
        if not (key in defaults and _is_equal(value, defaults[key]))
    }
    reduced = {key: _reduced(value, join(path, key)) for key, value in kept.items()}
    return (
        reduced
        if path
        else {key: value for key, value in reduced.items() if not _is_absent(key, value)}
    )


def _is_absent(group: str, node: Any) -> bool:
    """Return whether a top-level node is equivalent to no node at all.

    None of its keys counts then.
    """
    return node == {} or (node is None and group in OPTIONAL_GROUPS)


def _defaults(node: Mapping[str, object], path: str) -> dict[str, object]:
    """The code's default values of the keys that a node does not have."""
    if isinstance(target := node.get("_target_"), str):
        return _defaults_of_target(target)
    return _defaults_of(section(SETTINGS[path])) if path in SETTINGS else {}


@cache
def _defaults_of_target(target: str) -> dict[str, object]:
    try:
        spec = signature(target)
    # The defaults of a class that this code no longer has are not known.
    except NotFound:
        spec = None
    return INSTANTIATION_DEFAULTS | ({} if spec is None else _defaults_of(spec))


@cache
def _defaults_of(spec: Signature) -> dict[str, object]:
    return {
        parameter.name: parameter.default
        for parameter in spec.parameters
        if parameter.default is not REQUIRED and parameter.default is not UNKNOWN
    }


def _is_equal(value: Any, default: Any) -> bool:
    """Return whether two values are equal: 1 and 1.0 are, 1 and true are not.

    A list equals a tuple.
    """
    if isinstance(value, list):
        same_length = isinstance(default, list | tuple) and len(value) == len(default)
        return same_length and all(map(_is_equal, value, default))
    if isinstance(value, Mapping):
        same_keys = isinstance(default, Mapping) and value.keys() == default.keys()
        return same_keys and all(_is_equal(item, default[key]) for key, item in value.items())
    return isinstance(value, bool) == isinstance(default, bool) and bool(value == default)
