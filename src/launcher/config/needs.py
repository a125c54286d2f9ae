"""Find hooks that have no effect without another hook, which their class lists in `needs`."""

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from launcher.config import plain_yaml
from launcher.config.compositions import COLLECTIONS
from launcher.config.messages import ConfigIssue, show
from launcher.config.options import main_folder, options
from launcher.config.signature import attribute, signature
from launcher.config.source import NotFound
from launcher.config.tree import get

OWN = "launcher."
FUNCTIONS = "launcher.hooks.functions.FunctionHook"
METRIC_SCHEDULE = "launcher.hooks.metric_schedule.MetricScheduleHook"
"""The hook of a scheduler with a `metric`."""
VALIDATION = ("val_dataset", "val_files", "val_fraction", "num_val_samples")
"""Keys of `data` that give it a validation set."""

Node = dict[str, Any]


def need_issues(tree: dict[str, Any]) -> Iterator[ConfigIssue]:
    """Return the hooks that have no effect without another hook."""
    present = {target.rpartition(".")[0].rpartition(".")[2] for target in _targets(tree).values()}
    for path, setting, other in _needed(tree):
        if other not in present:
            listed = ",".join(_with(parts(tree, "hooks"), other))
            text = f"needs hooks.{other} ({setting}), which is missing; use hooks=[{listed}]."
            yield ConfigIssue(path, None, text)


def validation_issues(tree: dict[str, Any]) -> Iterator[ConfigIssue]:
    """Hooks that have no effect with data that have no validation set."""
    if get(tree, "hooks.evaluation.loader") is not None:
        return
    keys = [f"data.{key}" for key in VALIDATION if key in tree["data"]]
    for path, setting, other in _needed(tree):
        if other == "evaluation":
            fix = ", or ".join([*(f"set {key}" for key in keys[:1]), "leave it out"])
            yield ConfigIssue(
                path, None, f"needs a validation set ({setting}), and the data have none; {fix}."
            )


def _needed(tree: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """List each hook that needs another for a setting: its path, the setting, the other's name.

    If the user has a hook of their own, nothing is reported, since it may do the same.
    """
    nodes = {
        f"{group}.{name}": node
        for group in COLLECTIONS
        for name, node in parts(tree, group).items()
    }
    user_hooks = {
        path
        for path, target in _targets(tree).items()
        if not target.startswith(OWN) or target == FUNCTIONS
    }
    if get(tree, "scheduler.metric") is not None:
        nodes["scheduler"] = tree["scheduler"] | {"_target_": METRIC_SCHEDULE}
    for path, node in nodes.items():
        yield from (
            (path, setting, other) for setting, other in needs(node) if user_hooks <= {path}
        )


def _targets(tree: dict[str, object]) -> dict[str, str]:
    return {
        f"{group}.{name}": node["_target_"]
        for group in COLLECTIONS
        for name, node in parts(tree, group).items()
    }


def parts(tree: dict[str, Any], group: str) -> dict[str, Node]:
    """The parts of a group, by name."""
    nodes = tree.get(group)
    items = nodes.items() if isinstance(nodes, dict) else ()
    return {
        name: node
        for name, node in items
        if isinstance(node, dict) and isinstance(node.get("_target_"), str)
    }


def needs(node: Node) -> Iterator[tuple[str, str]]:
    """List the settings of a hook for which it needs another hook, with the name of that hook."""
    try:
        declared, spec = attribute(node["_target_"], "needs"), signature(node["_target_"])
    except NotFound:  # it is reported
        return
    for condition, other in (declared or {}).items():
        name, _, pattern = condition.partition("=")
        default = spec[name].default if spec is not None and name in spec.names else None
        text = show(node.get(name, default)).strip("'")
        if fnmatchcase(text, pattern):
            yield f"{name}={text}", other


def measuring(path: str, node: Node, value: Callable[[str], object]) -> Iterator[str]:
    """Return the hooks that measure the metrics by which a hook steers training."""
    try:
        keys = attribute(node["_target_"], "steered_by") or ()
    except NotFound:  # it is reported
        return
    settings = node | {key: value(f"{path}.{key}") for key in keys if key in node}
    yield from (other for setting, other in needs(settings) if setting.partition("=")[0] in keys)


def _with(hooks: dict[str, Node], other: str) -> list[str]:
    """The list of hooks to choose, with `default` if none of its hooks was chosen."""
    chosen = [name for name in hooks if name in options([main_folder()], "hooks")]
    entries = plain_yaml.load((main_folder() / "hooks" / "default.yaml").read_bytes())["defaults"]
    return [*chosen, other] if {*entries} & {*chosen} else ["default", *chosen]
