"""Find hooks that have no effect without another hook, which their class lists in `needs`."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache, partial

from launcher.config.messages import ConfigIssue, show
from launcher.config.options import COLLECTIONS, main_folder, options, own_option
from launcher.config.schema.declared import declared, parts, setting
from launcher.config.schema.observers import SCHEDULER, group_of, schedule, steering_metrics
from launcher.config.tree import Node, Tree, get

VALIDATION = ("val_dataset", "val_files", "val_fraction", "num_val_samples")
"""Keys of `data` that give it a validation set."""


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
