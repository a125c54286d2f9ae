"""Find hooks that have no effect without another hook, which their class lists in `needs`."""

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from launcher.config.messages import ConfigIssue, show
from launcher.config.options import COLLECTIONS
from launcher.config.schema.signature import attribute, signature_of
from launcher.config.tree import Tree, get, items

OWN_PREFIX = "launcher."
DEFAULT = {"progress", "logging", "evaluation", "checkpointing"}
"""The hooks of `hooks=default`."""
FUNCTIONS = "launcher.hooks.functions.FunctionHook"
METRIC_SCHEDULE = "launcher.hooks.metric_schedule.MetricScheduleHook"
"""The hook of a scheduler with a `metric`."""
METRIC_SETTINGS = ("metric", "best_metric")
LOGGED_GROUPS = ("train", "val", "throughput", "memory", "gradients", "spikes")
"""First parts of the names that the hooks of Launcher log, such as `val/loss`."""
VALIDATION = ("val_dataset", "val_files", "val_fraction", "num_val_samples")
"""Keys of `data` that give it a validation set."""


def need_issues(tree: Tree) -> Iterator[ConfigIssue]:
    """Return the hooks that have no effect without another hook."""
    modules = {node["_target_"].rpartition(".")[0] for node in _hooks(tree).values()}
    present = {module.rpartition(".")[2] for module in modules}
    for path, setting, other in _list_needs(tree):
        if other not in present:
            added = "default" if other in DEFAULT and not DEFAULT & present else other
            text = f"needs hooks.{other} ({setting}), which is missing; add {added} to hooks=[...]."
            yield ConfigIssue(path, None, text)


def metric_issues(tree: Tree) -> Iterator[ConfigIssue]:
    """Metrics that a hook or schedule follows, and that no hook logs."""
    for path, node in _without_own(tree).items():
        if not node["_target_"].startswith(OWN_PREFIX):
            continue
        metrics = {name: value for name, value, _ in conditions(node) if name in METRIC_SETTINGS}
        for name, metric in metrics.items():
            if metric.partition("/")[0] not in (*LOGGED_GROUPS, "null"):
                groups = "/, ".join(LOGGED_GROUPS)
                text = f"no hook logs it; use a name of {groups}/, e.g. val/loss."
                yield ConfigIssue(f"{path}.{name}", show(metric), text)


def validation_issues(tree: Tree) -> Iterator[ConfigIssue]:
    """Hooks that have no effect with data that have no validation set."""
    if get(tree, "hooks.evaluation.loader") is not None:
        return
    ways = [f"set data.{key}" for key in VALIDATION if key in tree["data"]][:1]
    fix = ", or ".join([*ways, "leave it out"])
    for path, setting, other in _list_needs(tree):
        if other == "evaluation":
            text = f"needs a validation set ({setting}), and the data have none; {fix}."
            yield ConfigIssue(path, None, text)


def _list_needs(tree: Tree) -> Iterator[tuple[str, str, str]]:
    """List each hook that needs another for a setting: its path, the setting, the other's name."""
    for path, node in _without_own(tree).items():
        yield from ((path, setting, other) for setting, other in needs(node))


def _without_own(tree: Tree) -> dict[str, Tree]:
    """The hooks by path, and the schedule that follows a metric.

    If the user has a hook of their own, it is the only one: it may log the metric or make the
    object that another hook uses.
    """
    nodes = _hooks(tree)
    own = {
        path
        for path, node in nodes.items()
        if not node["_target_"].startswith(OWN_PREFIX) or node["_target_"] == FUNCTIONS
    }
    if get(tree, "scheduler.metric") is not None:
        nodes["scheduler"] = tree["scheduler"] | {"_target_": METRIC_SCHEDULE}
    return {path: node for path, node in nodes.items() if own <= {path}}


def _hooks(tree: Tree) -> dict[str, Tree]:
    """The hooks and trackers by path."""
    groups = {group: parts(tree, group) for group in COLLECTIONS}
    return {
        f"{group}.{name}": node for group, nodes in groups.items() for name, node in nodes.items()
    }


def parts(tree: Tree, group: str) -> dict[str, Tree]:
    """The parts of a group, by name."""
    return {
        name: node
        for name, node in items(tree, group)
        if isinstance(node, dict) and isinstance(node.get("_target_"), str)
    }


def needs(node: Tree) -> Iterator[tuple[str, str]]:
    """List the settings of a hook for which it needs another hook, with the name of that hook."""
    for name, text, (pattern, other) in conditions(node):
        if fnmatchcase(text, pattern):
            yield f"{name}={text}", other


def conditions(node: Tree) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """List the conditions in a hook's `needs`.

    Returns:
        The setting's name and its value as text; the pattern of the value with which the hook needs
            another one, and the name of that.
    """
    spec = signature_of(node["_target_"])
    for condition, other in (attribute(node["_target_"], "needs") or {}).items():
        name, _, pattern = condition.partition("=")
        default = spec[name].default if spec is not None and name in spec.names else None
        yield name, show(node.get(name, default), 200).strip("'"), (pattern, other)


def measuring(path: str, node: Tree, value: Callable[[str], object]) -> Iterator[str]:
    """Return the hooks that measure the metrics by which a hook steers training."""
    keys = attribute(node["_target_"], "steered_by") or ()
    settings = node | {key: value(f"{path}.{key}") for key in keys if key in node}
    yield from (other for setting, other in needs(settings) if setting.partition("=")[0] in keys)
