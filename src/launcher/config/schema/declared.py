"""Declarations of the class of a part, read from its source without importing it.

A declaration is an attribute of the class, its own or inherited, whose value is a literal:
`one_process = True`. A function has the declarations of its module.
"""

from typing import Any

from launcher.config.schema.signature import class_source, signature_of
from launcher.config.tree import Node, get, items

DEFAULT_READS = ("files", "*_files")
DECLARATIONS: dict[str, tuple[Any, Any]] = {
    # Of a job: whether it trains its run, so that a completed run leaves it nothing to do.
    "trains": (False, True),
    # Of a job: whether it needs an optimizer and the settings of training.
    "needs_optimizer": (True, True),
    # Of a job: keys of `data` that name the files which it reads.
    "reads": (DEFAULT_READS, DEFAULT_READS),
    # Of a job: whether it starts the ranks of its trainings itself.
    "starts_ranks": (False, False),
    # Of a job or strategy: whether it has no use for a second rank.
    "one_process": (False, False),
    # Of a job or data source: keys that name folders which it writes to.
    "writes": ((), ()),
    # Of any part: keys whose values run code, for which a configuration of others needs trust.
    "code_keys": ((), ()),
    # Of any part: keys that came later, which are hashed only where they differ from their default.
    "later_keys": ((), ()),
    # Of a model: its attributes that are optimizers and schedules, which its forward pass steps.
    "owns_optimizers": ((), ()),
    # Of an optimizer or strategy: whether it leaves the steps to such a model.
    "own_steps": (False, False),
    # Of a strategy: its name in messages, and whether its keys are DeepSpeed's.
    "name": ("?", "?"),
    "is_deepspeed": (False, False),
    # Of a dispatch: whether it trains the trials of a search as processes, or as jobs of SLURM.
    "trials": ("", ""),
    # Of a hook: see `launcher.hooks.base.BaseHook`.
    "changes_numbers": (True, True),
    "provides": (None, None),
    "needs": ({}, {}),
    "steered_by": ((), None),
    "at_the_end": ((), ()),
}
"""The value of each declaration for a class that leaves it out, and for a class that cannot be read
or declares something other than a literal of this type. Such a class counts as one that trains,
changes numbers, provides anything (None) and is steered by any metric (None)."""

ANYTHING = ("*",)
"""The names that a hook provides whose class does not declare them."""


def declared(target: object, name: str) -> Any:
    """Return what a class or function declares; see `DECLARATIONS`."""
    undeclared, unreadable = DECLARATIONS[name]
    values, has_more = class_source(target).attributes
    if name not in values:
        return unreadable if has_more else undeclared
    # A class of a user's own may have such a name for something else.
    kinds = (tuple, list) if undeclared is None else (type(undeclared),)
    return values[name] if isinstance(values[name], kinds) else unreadable


def parts(group: str, nodes: object) -> dict[str, Node]:
    """Return the parts of a group by path, from its nodes by name."""
    return {
        f"{group}.{name}": node
        for name, node in items(nodes)
        if isinstance(get(node, "_target_"), str)
    }


def provided_by(node: Node) -> tuple[str, ...]:
    """Return what a hook or tracker provides, or `ANYTHING`."""
    names: tuple[str, ...] | None = declared(node["_target_"], "provides")
    return ANYTHING if names is None else names


def providing(hooks: object, name: str) -> list[Node]:
    """Return the hooks whose classes declare that they provide something."""
    return [node for node in parts("hooks", hooks).values() if name in provided_by(node)]


def setting(node: Node, name: str) -> Any:
    """Return the value of a key of a part, or the default of its class, or None."""
    return node.get(name, signature_of(node["_target_"]).defaults.get(name))
