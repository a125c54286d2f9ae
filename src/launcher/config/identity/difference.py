"""Comparison of configurations, and its result as lines or as cells of a table."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from launcher.config.messages import show, to_override_text
from launcher.config.tree import join

ABSENT: Any = object()
"""The value of a key that a configuration does not have."""
WORD = re.compile(r"[A-Za-z_][\w./-]{0,59}")
CONSTANTS = ("null", "true", "false", "nan", "inf")
MAX_IN_A_LINE = 5
Differences = dict[str, list[Any]]
"""The value of each differing key in each configuration."""


def diff(*trees: Mapping[Any, Any], ignored: Collection[str] = ()) -> Differences:
    """Compare configurations, which may be nested or have dotted keys.

    A class that a configuration lacks is one key. The numbers 1 and 1.0 are equal, and 1 and true
    are not.

    Args:
        *trees: the configurations, as plain containers.
        ignored: keys that are left out, with the keys below them.
    """
    return {key: values for key, values in _differing(trees, "") if not is_within(key, ignored)}


def _differing(trees: Sequence[Mapping[Any, Any]], path: str) -> Iterator[tuple[str, list[Any]]]:
    for key in sorted(set().union(*trees), key=str):
        values = [tree.get(key, ABSENT) for tree in trees]
        first = values[0]
        # Values of many runs are usually one object, which needs no call.
        others = [value for value in values if value is not first]
        if others:
            if _are_nodes(values):
                nodes = [{} if value is ABSENT else value for value in values]
                yield from _differing(nodes, join(path, key))
            elif not all(is_equal(value, first) for value in others):
                yield join(path, key), values


def _are_nodes(values: list[Any]) -> bool:
    """Return whether to compare the keys of values; a class that some lack is compared whole."""
    nodes = [value for value in values if isinstance(value, Mapping)]
    lacking = sum(value is ABSENT for value in values)
    return len(nodes) + lacking == len(values) and (
        not lacking or (any(nodes) and not any("_target_" in node for node in nodes))
    )


def is_within(key: str, nodes: Collection[str]) -> bool:
    """Return whether a dotted key is one of the nodes, or below one."""
    parts = key.split(".")
    return any(".".join(parts[: length + 1]) in nodes for length in range(len(parts)))


def is_equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal: 1 and 1.0, a list and a tuple, not 1 and true."""
    if isinstance(one, list | tuple):
        same_length = isinstance(other, list | tuple) and len(one) == len(other)
        return same_length and all(map(is_equal, one, other))
    if isinstance(one, Mapping):
        same_keys = isinstance(other, Mapping) and one.keys() == other.keys()
        return same_keys and all(is_equal(value, other[key]) for key, value in one.items())
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def by_choice(differences: Differences, *choices: Mapping[str, object]) -> Differences:
    """Replace the keys of each group whose options differ by the options."""
    changed = {key.partition(".")[0] for key in differences}
    groups = {group: options for group, options in diff(*choices).items() if group in changed}
    rest = {key: values for key, values in differences.items() if not is_within(key, groups)}
    return {**groups, **rest}


def describe(differences: Differences) -> list[str]:
    """Describe how the second of two configurations differs from the first."""
    return [_describe(key, *values) for key, values in differences.items()]


def _describe(key: str, before: object, after: object) -> str:
    if before is ABSENT:
        return f"{key}={_show(after)} (new)"
    return f"{key}: {_show(before)} -> {'gone' if after is ABSENT else _show(after)}"


def _show(value: object) -> str:
    """Format a value as on a command line, with quotes around a text that needs them."""
    is_word = isinstance(value, str) and WORD.fullmatch(value) and value.lower() not in CONSTANTS
    return str(value) if is_word else show(value)


def in_a_line(differences: Differences) -> str:
    lines = describe(differences)
    return ", ".join(lines[:MAX_IN_A_LINE]) + (", ..." if len(lines) > MAX_IN_A_LINE else "")


def columns(differences: Differences) -> dict[str, list[str | None]]:
    """Return the cells of a table, as typed on a command line, or None for an absent key."""
    return {
        key: [None if value is ABSENT else to_override_text(value) for value in values]
        for key, values in differences.items()
    }
