"""Walking over configurations as plain containers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any


def join(path: str, key: object) -> str:
    """The dotted path of a key in a node; the path of the root is ""."""
    return f"{path}.{key!s}" if path else str(key)


def get(tree: Any, path: str) -> Any:
    """The value at a dotted path; None if there is none."""
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def walk(tree: Any, path: str = "", lists: bool = False) -> Iterator[tuple[str, Any]]:
    """Every value with its dotted path, outer ones first; with `lists`, also the items of lists."""
    items = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if lists and isinstance(tree, list) else ()
    for key, value in items:
        here = join(path, key)
        yield here, value
        yield from walk(value, here, lists)


def leaves(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The values by dotted path; lists and empty mappings are values."""
    return {path: value for path, value in walk(tree) if not (isinstance(value, Mapping) and value)}


def mapped(tree: Any, change: Callable[[Any, tuple[Any, ...]], Any], keys: tuple[Any, ...] = ()) -> Any:
    """The tree with each leaf replaced by `change(leaf, keys)`; `keys` is the path to the leaf. Unchanged nodes are
    shared with the old tree."""
    if isinstance(tree, Mapping):
        node = {str(key): mapped(value, change, (*keys, key)) for key, value in tree.items()}
        return tree if _is_same(node.items(), tree.items()) else node
    if isinstance(tree, list):
        items = [mapped(value, change, (*keys, index)) for index, value in enumerate(tree)]
        return tree if _is_same(enumerate(items), enumerate(tree)) else items
    return change(tree, keys)


def _is_same(items: Iterable[tuple[Any, Any]], others: Iterable[tuple[Any, Any]]) -> bool:
    return all(key == other and value is old for (key, value), (other, old) in zip(items, others, strict=True))
