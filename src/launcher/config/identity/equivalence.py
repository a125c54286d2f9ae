"""Identities that name the same run although they differ.

They may differ by keys whose value is the code's default, by hooks that change no number, and by
the names of a class. `canonical` leaves out every key that has its default and every such hook, so
two identities are equivalent exactly if their canonical trees are equal. A value that changed is
never equivalent, even if the default changed to the same value: only the identity that has the new
value loses the key.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from launcher.config.identity.difference import is_equal
from launcher.config.schema.declared import declared
from launcher.config.schema.hook_dependencies import COUNTING, uncounted_keys
from launcher.config.schema.signature import (
    REQUIRED,
    defined_as,
    signature_of,
)
from launcher.config.schema.source import cached_by_sources
from launcher.config.settings import SECTIONS, CompileSettings, section
from launcher.config.tree import Node, Tree, join, pick, without

OPTIONAL_GROUPS = ("scheduler",)
"""Groups that a run does without if they are null."""

INSTANTIATION_DEFAULTS = {"_partial_": False, "_recursive_": True, "_convert_": "all"}

SETTINGS: dict[str, type] = {**SECTIONS, "trainer.compile": CompileSettings}


def identity_key(identity: Node) -> str:
    """Return a text that two identities share exactly if they are equivalent."""
    text = json.dumps(canonical(identity), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def canonical(identity: Node) -> Tree:
    """Return an identity without the keys that have their defaults, and the hooks that observe."""
    return without_defaults(identity, uncounted_keys(*pick(identity, COUNTING)))


def without_defaults(identity: Node, uncounted: Collection[str] = ()) -> Tree:
    """Return an identity without the keys that have their defaults, and without further ones."""
    reduced: Tree = _reduce(identity, "", uncounted)
    return reduced


def later_defaults(path: str, target: object) -> Tree:
    """Return the keys that came after other runs of a section or class, with their defaults."""
    keys = declared(target, "later_keys")
    if target is None:
        keys = getattr(SETTINGS.get(path), "later_keys", ())
    return {key: _defaults(target, path).get(key, REQUIRED) for key in keys}


def _reduce(tree: object, path: str, uncounted: Collection[str]) -> Any:
    if isinstance(tree, list):
        return [_reduce(item, join(path, index), uncounted) for index, item in enumerate(tree)]
    if path.endswith("_target_") and isinstance(tree, str):
        return defined_as(tree)
    if not isinstance(tree, Mapping):
        return tree
    defaults = _defaults(tree.get("_target_"), path)
    reduced = {
        key: _reduce(value, join(path, key), uncounted)
        for key, value in tree.items()
        if join(path, key) not in uncounted
        and not (key in defaults and is_equal(value, defaults[key]))
    }
    absent = () if path else [key for key, value in reduced.items() if _is_absent(key, value)]
    return without(reduced, *absent)


def _is_absent(group: str, node: Any) -> bool:
    """Return whether a top-level node is equivalent to no node at all."""
    return node == {} or (node is None and group in OPTIONAL_GROUPS)


def _defaults(target: object, path: str) -> Tree:
    """The code's default values of the keys of a class, or of a section."""
    if isinstance(target, str):
        return _defaults_of_target(target)
    return section(SETTINGS[path]).defaults if path in SETTINGS else {}


@cached_by_sources
def _defaults_of_target(target: str) -> Tree:
    # The defaults of a class that this code no longer has are not known.
    return INSTANTIATION_DEFAULTS | signature_of(target).defaults
