"""Walking over configurations as plain containers."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeGuard

Node = Mapping[str, Any]
"""A node of a configuration, or all of it."""
Tree = dict[str, Any]
"""The same where it is changed, or combined with others."""
REFERENCE = re.compile(r"\$\{([\w.]+)\}")
"""An interpolation of another key."""
KEY_TYPES: dict[str, Callable[[str], object]] = {
    "!!int": int,
    "!!float": float,
    "!!bool": lambda text: text == "true",
}
"""The tags of keys that are not text."""


def join(path: str, key: object) -> str:
    """The dotted path of a key in a node; the path of the root is ""."""
    return f"{path}.{key!s}" if path else str(key)


def is_interpolation(value: object) -> TypeGuard[str]:
    """Return whether a value of a tree must be resolved."""
    return isinstance(value, str) and "${" in value


def get(tree: object, path: str, default: object = None) -> Any:
    """Return the value at a dotted path, or the default if there is none or it is null."""
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return default if tree is None else tree


def pick(tree: object, keys: Iterable[str]) -> list[Any]:
    """Return the values at dotted paths, None where there is none."""
    return [get(tree, key) for key in keys]


def items(node: object) -> Iterable[tuple[Any, Any]]:
    """Return the items of a dict, or nothing of anything else."""
    return node.items() if isinstance(node, dict) else ()


def as_list(value: object) -> list[Any]:
    """Return a list as it is, and any other value as the only item of one."""
    return value if isinstance(value, list) else [value]


def value_at(tree: Any, keys: Iterable[Any]) -> Any:
    """Return the value under nested keys and indices."""
    for key in keys:
        tree = tree[key]
    return tree


def walk(tree: object, path: str = "", lists: bool = False) -> Iterator[tuple[str, object]]:
    """Yield every value with its dotted path, outer ones first; items of lists on request."""
    items: Iterable[tuple[Any, object]] = ()
    if isinstance(tree, dict):
        items = tree.items()
    elif lists and isinstance(tree, list):
        items = enumerate(tree)
    for key, value in items:
        here = join(path, key)
        yield here, value
        yield from walk(value, here, lists)


def leaves(tree: Node) -> dict[str, object]:
    """The values by dotted path. Lists and empty mappings count as values."""
    return {path: value for path, value in walk(tree) if not (isinstance(value, Mapping) and value)}


def without(node: Node, *keys: str) -> Tree:
    """Return a copy of a node without some keys."""
    return {key: value for key, value in node.items() if key not in keys}


def of_the_run(tree: Node) -> Tree:
    """Return a resolved configuration without the nodes that a run does not depend on."""
    nodes = without(tree, "hydra", "hpo")
    if isinstance(nodes.get("run"), Mapping):
        nodes["run"] = without(nodes["run"], "identity")
    return nodes


def with_text_keys(tree: object) -> Any:
    """Return the tree with keys that are all text, such as `!!int 1` for the key 1, as in YAML."""
    return _map_keys(tree, _text_key)


def _text_key(key: object) -> str:
    if isinstance(key, str):
        return key
    return f"!!{type(key).__name__} {str(key).lower()}"


def with_typed_keys(tree: object) -> Any:
    """The reverse of `with_text_keys`."""
    return _map_keys(tree, _typed_key)


def _typed_key(key: str) -> object:
    kind, _, text = key.partition(" ")
    return KEY_TYPES[kind](text) if kind in KEY_TYPES else key


def _map_keys(tree: object, change: Callable[[Any], object]) -> Any:
    if isinstance(tree, Mapping):
        return {change(key): _map_keys(value, change) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_map_keys(value, change) for value in tree]
    return tree


def flat(tree: Node, path: str = "") -> dict[str, object]:
    """Return the values by dotted path, from which `nest` makes the same tree.

    A mapping is a value if it is empty or has a key with a dot, or one that is not text.
    """
    values: Tree = {}
    for key, value in tree.items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping) and value and all(map(_is_part_of_path, value)):
            values.update(flat(value, here))
        else:
            values[here] = value
    return values


def _is_part_of_path(key: object) -> bool:
    return isinstance(key, str) and "." not in key


def nest(values: Node) -> Tree:
    """The reverse of `flat`."""
    tree: Tree = {}
    for path, value in values.items():
        *parents, name = path.split(".")
        node = tree
        for key in parents:
            if not isinstance(node.get(key), dict):
                node[key] = {}
            node = node[key]
        node[name] = value
    return tree


def map_leaves(
    tree: object,
    change: Callable[[object, tuple[object, ...]], object],
    keys: tuple[object, ...] = (),
) -> Any:
    """The tree with each leaf replaced by `change(leaf, keys)`; `keys` is the path to the leaf."""
    if isinstance(tree, dict):
        return {key: map_leaves(value, change, (*keys, key)) for key, value in tree.items()}
    if isinstance(tree, list):
        return [map_leaves(value, change, (*keys, index)) for index, value in enumerate(tree)]
    return change(tree, keys)
