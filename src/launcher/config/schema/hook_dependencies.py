"""Rules of hooks: which change no number, and what one needs of another."""

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache, partial

from launcher.config.messages import ConfigIssue, show
from launcher.config.options import COLLECTIONS, main_folder, options, own_option
from launcher.config.schema.declared import declared, parts, setting
from launcher.config.tree import Node, Tree, get, items

VALIDATION = ("val_dataset", "val_files", "val_fraction", "num_val_samples")
"""Keys of `data` that give it a validation set."""
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


def need_issues(tree: Tree) -> Iterator[ConfigIssue]:
    """Return the hooks that have no effect without another hook."""
    provided = _provided(tree)
    for path, reason, name in _list_needs(tree):
        option = providers().get(name)
        if name not in provided and option is not None:
            default = own_option("hooks", "default")["defaults"]
            has_default = set(default) & set(get(tree, "hooks") or ())
            added = "default" if option in default and not has_default else option
            text = f"needs hooks.{option} ({reason}), which is missing; add {added} to hooks=[...]."
            yield ConfigIssue(path, None, text)


def metric_issues(tree: Tree) -> Iterator[ConfigIssue]:
    """Metrics that a hook or schedule follows, and that no hook logs."""
    provided = _provided(tree)
    for path, node in _nodes(tree).items():
        followed = dict(steering_metrics(path, node, partial(get, tree)))
        followed |= {
            key: text for key, text, (pattern, _) in conditions(path, node) if "/" in pattern
        }
        for key, metric in followed.items():
            group = group_of(metric)
            if metric != "null" and group not in provided and group not in providers():
                groups = ", ".join(sorted(name for name in providers() if name.endswith("/")))
                text = f"no hook logs it; use a name of {groups}, e.g. val/loss."
                yield ConfigIssue(f"{path}.{key}", show(metric), text)


def validation_issues(tree: Tree) -> Iterator[ConfigIssue]:
    """Hooks that have no effect with data that have no validation set."""
    if get(tree, "hooks.evaluation.loader") is not None:
        return
    ways = [f"set data.{key}" for key in VALIDATION if key in tree["data"]][:1]
    fix = ", or ".join([*ways, "leave it out"])
    for path, reason, name in _list_needs(tree):
        if providers().get(name) == "evaluation":
            text = f"needs a validation set ({reason}), and the data have none; {fix}."
            yield ConfigIssue(path, None, text)


def _list_needs(tree: Tree) -> Iterator[tuple[str, str, str]]:
    """Yield what a hook or schedule needs: its path, the setting, and what another one provides."""
    for path, node in _nodes(tree).items():
        for key, text, (pattern, needed) in conditions(path, node):
            if fnmatchcase(text, pattern):
                yield path, f"{key}={text}", needed
        for key, metric in steering_metrics(path, node, partial(get, tree)):
            yield path, f"{key}={metric}", group_of(metric)


def _nodes(tree: Tree) -> dict[str, Node]:
    """Return the hooks and trackers by path, and the schedule that follows a metric.

    A hook that does not declare what it provides, as most of a user's own, is the only one: it may
    log the metric or make the object that another hook uses.
    """
    nodes = _hooks(tree)
    unknown = {path for path, node in nodes.items() if declared(node, "provides") is None}
    return {path: node for path, node in (nodes | schedule(tree)).items() if unknown <= {path}}


def _provided(tree: Tree) -> set[str]:
    return {name for node in _hooks(tree).values() for name in declared(node, "provides") or ()}


def _hooks(tree: Tree) -> dict[str, Node]:
    return {path: node for group in COLLECTIONS for path, node in parts(tree, group).items()}


@cache
def providers() -> dict[str, str]:
    """Return the option of Launcher's own hooks that provides each name."""
    names = options([main_folder()], "hooks")
    return {
        provided: name
        for name in names
        for provided in declared(own_option("hooks", name).get(name), "provides") or ()
    }


def conditions(path: str, node: Node) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """List the conditions in the `needs` of a hook.

    Returns:
        The setting's name and its value as text; the pattern of the value with which the hook needs
            another one, and the name of what that provides.
    """
    needs = {} if path == SCHEDULER else declared(node, "needs")
    for condition, needed in needs.items():
        name, _, pattern = condition.partition("=")
        yield name, show(setting(node, name), 200).strip("'"), (pattern, needed)
