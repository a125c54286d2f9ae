"""Rules of hooks: which change no number, and what one needs of another."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache

from launcher.config.messages import ConfigIssue, show
from launcher.config.options import main_folder, options, own_option
from launcher.config.schema.declared import ANYTHING, declared, parts, provided_by, setting
from launcher.config.tree import Node, get, items

VALIDATION = ("val_dataset", "val_files", "val_fraction", "num_val_samples")
"""Keys of `data` that give it a validation set."""
SCHEDULER = "scheduler"
COUNTING = ("hooks", SCHEDULER, "run.identity_exclude")
"""The keys of a configuration that decide which of its hooks count; see `uncounted_keys`."""
Values = Callable[[str], object]
"""Returns the resolved value of a dotted key."""


def uncounted_keys(
    hooks: object, scheduler: object, listed: object, value: Values | None = None
) -> set[str]:
    """Return the keys of `run.identity_exclude`, and the hooks that change no number or are null.

    A hook that measures a metric by which another part steers training is not among them.

    Args:
        hooks: the hooks of a configuration, or of an identity.
        scheduler: its schedule.
        listed: its `run.identity_exclude`.
        value: the values of the configuration. Default None: hooks and schedule are resolved.
    """
    # The schema rejects everything but a list.
    excluded = set(map(str, listed)) if isinstance(listed, Sequence) else set()
    excluded |= {f"hooks.{name}" for name, node in items(hooks) if node is None}
    observing = parts("hooks", hooks)
    excluded |= {
        path
        for path, node in observing.items()
        if not declared(node["_target_"], "changes_numbers")
    }
    steering = {path: observing.pop(path) for path in observing.keys() - excluded}
    groups = set[str]()
    for path, node in (steering | _following(scheduler)).items():
        for key in _steering_keys(path, node):
            metric = value(f"{path}.{key}") if value and key in node else setting(node, key)
            if isinstance(metric, str):
                groups.add(group_of(metric))
    # A class that cannot be read may be steered by any metric.
    if any(declared(node["_target_"], "steered_by") is None for node in steering.values()):
        groups.add("*/")
    measuring = {
        path
        for path, node in observing.items()
        for name in provided_by(node)
        if any(fnmatchcase(name, group) for group in groups)
    }
    return excluded - measuring


def _following(scheduler: object) -> dict[str, Node]:
    """Return the schedule by its path, if it follows a metric."""
    if isinstance(scheduler, Mapping) and scheduler.get("metric") is not None:
        return {SCHEDULER: scheduler}
    return {}


def _steering_keys(path: str, node: Node) -> Sequence[str]:
    """Return the keys of a part that name a metric by which it steers training."""
    if path == SCHEDULER:
        return ("metric",)
    return declared(node["_target_"], "steered_by") or ()


def group_of(metric: str) -> str:
    """Return the group of a metric, as `provides` has it: `val/` of `val/loss`."""
    return f"{metric.partition('/')[0]}/"


def need_issues(hooks: object, tracker: object, scheduler: object) -> Iterator[ConfigIssue]:
    """Return the hooks that have no effect without another hook."""
    provided = _provided(hooks, tracker)
    for path, reason, name in _needs(hooks, tracker, scheduler):
        if name not in provided and (option := providers().get(name)) is not None:
            default = own_option("hooks", "default")["defaults"]
            has_default = not set(default).isdisjoint(dict(items(hooks)))
            added = "default" if option in default and not has_default else option
            text = f"needs hooks.{option} ({reason}), which is missing; add {added} to hooks=[...]."
            yield ConfigIssue(path, None, text)


def metric_issues(hooks: object, tracker: object, scheduler: object) -> Iterator[ConfigIssue]:
    """Metrics that a hook or schedule follows, and that no hook logs."""
    provided = _provided(hooks, tracker)
    for path, node in _nodes(hooks, tracker, scheduler).items():
        followed = dict(_steering_metrics(path, node))
        followed |= {key: text for key, text, pattern, _ in _conditions(node) if "/" in pattern}
        for key, metric in followed.items():
            # The files of all hooks are read only if the hooks of this run do not log it.
            group = group_of(metric)
            if metric != "null" and group not in provided and group not in providers():
                groups = ", ".join(sorted(name for name in providers() if name.endswith("/")))
                text = f"no hook logs it; use a name of {groups}, e.g. val/loss."
                yield ConfigIssue(f"{path}.{key}", show(metric), text)


def validation_issues(
    hooks: object, tracker: object, scheduler: object, data: Node
) -> Iterator[ConfigIssue]:
    """Hooks that have no effect with data that have no validation set."""
    if get(hooks, "evaluation.loader") is not None:
        return
    ways = [f"set data.{key}" for key in VALIDATION if key in data][:1]
    fix = ", or ".join([*ways, "leave it out"])
    for path, reason, name in _needs(hooks, tracker, scheduler):
        if providers().get(name) == "evaluation":
            text = f"needs a validation set ({reason}), and the data have none; {fix}."
            yield ConfigIssue(path, None, text)


def _needs(hooks: object, tracker: object, scheduler: object) -> Iterator[tuple[str, str, str]]:
    """Yield what a hook or schedule needs: its path, the setting, and what another one provides."""
    for path, node in _nodes(hooks, tracker, scheduler).items():
        for key, text, pattern, needed in _conditions(node):
            if fnmatchcase(text, pattern):
                yield path, f"{key}={text}", needed
        for key, metric in _steering_metrics(path, node):
            yield path, f"{key}={metric}", group_of(metric)


def _nodes(hooks: object, tracker: object, scheduler: object) -> dict[str, Node]:
    """Return the hooks and trackers by path, and the schedule that follows a metric.

    A hook that does not declare what it provides, as most of a user's own, is the only one: it may
    log the metric or make the object that another hook uses.
    """
    nodes = _observers(hooks, tracker)
    unknown = {path for path, node in nodes.items() if provided_by(node) == ANYTHING}
    nodes |= _following(scheduler)
    return {path: node for path, node in nodes.items() if unknown <= {path}}


def _provided(hooks: object, tracker: object) -> set[str]:
    """Return the names that hooks and trackers provide."""
    return {name for node in _observers(hooks, tracker).values() for name in provided_by(node)}


def _observers(hooks: object, tracker: object) -> dict[str, Node]:
    return parts("hooks", hooks) | parts("tracker", tracker)


@cache
def providers() -> dict[str, str]:
    """Return the option of Launcher's own hooks that provides each name."""
    nodes = {
        name: own_option("hooks", name).get(name) for name in options([main_folder()], "hooks")
    }
    return {
        provided: path.partition(".")[2]
        for path, node in parts("hooks", nodes).items()
        for provided in provided_by(node)
    }


def _steering_metrics(path: str, node: Node) -> Iterator[tuple[str, str]]:
    """Yield each key by which a metric steers training, with the metric."""
    for key in _steering_keys(path, node):
        metric = setting(node, key)
        if isinstance(metric, str):
            yield key, metric


def _conditions(node: Node) -> Iterator[tuple[str, str, str, str]]:
    """List the conditions in the `needs` of a hook.

    Returns:
        The setting's name and its value as text; the pattern of the value with which the hook needs
            another one, and the name of what that provides.
    """
    for condition, needed in declared(node["_target_"], "needs").items():
        name, _, pattern = condition.partition("=")
        yield name, show(setting(node, name), 200).strip("'"), pattern, needed
