"""Hooks that change no number of a run, and so are not part of its identity."""

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from launcher.config.schema.declared import declared, parts, setting
from launcher.config.tree import Node, get, items

SCHEDULER = "scheduler"
Values = Callable[[str], object]
"""Returns the resolved value of a dotted key."""


def uncounted_keys(tree: Node, value: Values) -> set[str]:
    """Return the keys of `run.identity_exclude`, and the hooks that change no number or are null.

    A hook that measures a metric by which another part steers training is not among them.

    Args:
        tree: a configuration, or an identity.
        value: the values of the configuration.
    """
    # The schema rejects everything but a list.
    listed = value("run.identity_exclude")
    excluded = set(map(str, listed)) if isinstance(listed, Sequence) else set()
    excluded |= {f"hooks.{name}" for name, node in items(tree, "hooks") if node is None}
    hooks = parts(tree, "hooks")
    excluded |= {path for path, node in hooks.items() if not declared(node, "changes_numbers")}
    steering = {path: node for path, node in hooks.items() if path not in excluded}
    groups = {
        group_of(metric)
        for path, node in (steering | schedule(tree)).items()
        for _, metric in steering_metrics(path, node, value)
    }
    # A class that cannot be read may be steered by any metric.
    if any(declared(node, "steered_by") is None for node in steering.values()):
        groups.add("*/")
    measuring = {
        path
        for path in hooks.keys() & excluded
        for name in declared(hooks[path], "provides") or ()
        if any(fnmatchcase(name, group) for group in groups)
    }
    return excluded - measuring


def schedule(tree: Node) -> dict[str, Node]:
    """Return the schedule by its path, if it follows a metric."""
    node = get(tree, SCHEDULER)
    return {} if get(node, "metric") is None else {SCHEDULER: node}


def steering_metrics(path: str, node: Node, value: Values) -> Iterator[tuple[str, str]]:
    """Yield each key by which a metric steers training, with the metric."""
    keys = ("metric",) if path == SCHEDULER else declared(node, "steered_by") or ()
    for key in keys:
        metric = value(f"{path}.{key}") if key in node else setting(node, key)
        if isinstance(metric, str):
            yield key, metric


def group_of(metric: str) -> str:
    """Return the group of a metric, as `provides` has it: `val/` of `val/loss`."""
    return f"{metric.partition('/')[0]}/"
