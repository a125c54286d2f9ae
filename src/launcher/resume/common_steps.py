"""The number of first steps in which two runs are the same run."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.config.construct import target_object
from launcher.config.identity.difference import Differences, diff
from launcher.config.identity.equivalence import without_defaults
from launcher.config.identity.record_entry import for_json
from launcher.config.schema.matters_from import Pair, Rule, is_ours
from launcher.config.schema.run_length import with_steps
from launcher.config.settings import TrainerSettings
from launcher.config.tree import Node, Tree, get, join
from launcher.optim import schedulers

OWNERS: dict[str, Any] = {"trainer": TrainerSettings, "scheduler": schedulers}
"""The owners of `matters_from` for a section, and for a group with classes of torch."""


def common_steps(one: Node, other: Node, lines: Callable[[], Sequence[Node]] = tuple) -> int:
    """Return the number of first steps that two runs have in common, bitwise identical.

    It is 0 unless every key in which they differ has a rule
    (`launcher.config.schema.matters_from`).

    Args:
        one: an identity, in which `trainer.max_steps` is a number.
        other: another one.
        lines: see `launcher.config.schema.matters_from.Pair`.
    """
    return max(0, min(_limits(one, other, lines).values(), default=0))


def obstacles(
    one: Node, other: Node, steps: int, lines: Callable[[], Sequence[Node]] = tuple
) -> Differences:
    """Return the keys for which two runs have fewer first steps in common, see `common_steps`."""
    limits = _limits(one, other, lines)
    return {
        key: values
        for key, values in diff(without_defaults(other), without_defaults(one)).items()
        if limits.get(key, steps) < steps
    }


def _limits(one: Node, other: Node, lines: Callable[[], Sequence[Node]]) -> dict[str, int]:
    """Return the steps that two runs have in common as far as a key decides, by differing key.

    The key "" stands for the length that both have. If any key has no rule, only such keys count.
    """
    rules = {
        key: _rule(key, one, other) for key in diff(without_defaults(one), without_defaults(other))
    }
    without = [key for key, (_, rule) in rules.items() if rule is None]
    if without:
        return dict.fromkeys(without, 0)
    # A rule may construct parts, so each key must have one before the first is asked.
    pair = Pair(one, other, lines)
    asked = {
        (path, rule): rule(get(one, path), get(other, path), pair)
        for path, rule in rules.values()
        if rule is not None
    }
    limits = {key: asked[path, rule] for key, (path, rule) in rules.items() if rule is not None}
    return {"": pair.steps_before_an_end, **limits}


def comparable(
    identity: Node, config: Node, max_steps: int | None, counts_workers: bool = False
) -> Tree:
    """Return an identity with what else decides the lines of a run: its hooks and its length.

    Args:
        identity: what a run is named by.
        config: its configuration, as it is stored.
        max_steps: its last step, or None if it is not known. An identity with its own, which does
            not follow from the data, keeps it.
        counts_workers: whether the number of workers decides the random numbers of the data.
    """
    nodes = {"hooks": for_json(config.get("hooks") or {})}
    if counts_workers:
        nodes["data"] = {**identity["data"], "num_workers": get(config, "data.num_workers")}
    if max_steps and get(identity, "trainer.max_steps") is None:
        identity = with_steps(identity, max_steps)
    return {**identity, **nodes}


def decisive_part(identity: Node) -> str:
    """Return a text that is the same for any two identities with a common step."""
    return json.dumps(_without_rules(without_defaults(identity), ""), sort_keys=True)


def _without_rules(node: Node, path: str) -> Tree:
    """Return a node without the keys that have a rule, and the nodes whose keys all have one."""
    rules = _rules_of(path, node) or {}
    remaining = {}
    for key, value in node.items():
        here = join(path, key)
        # A node that is null is equivalent to none.
        if value is None or key in rules or "*" in (_rules_of(here, value) or {}):
            continue
        remaining[key] = _without_rules(value, here) if isinstance(value, Mapping) else value
    return remaining


def _rule(key: str, one: Node, other: Node) -> tuple[str, Rule | None]:
    """Return the rule of a key, and the path of the node whose class has it."""
    parts = key.split(".")
    for depth in range(len(parts), 0, -1):
        # The key may be of a whole class, which one of them lacks.
        path = ".".join(parts[:depth])
        name = parts[depth] if depth < len(parts) else "*"
        nodes = [node for tree in (one, other) if (node := get(tree, path)) is not None]
        declared = [rules for node in nodes if (rules := _rules_of(path, node)) is not None]
        if declared:
            common = {rules.get(name, rules.get("*")) for rules in declared}
            return path, common.pop() if len(common) == 1 and len(declared) == len(nodes) else None
    return "", None


def _rules_of(path: str, node: object) -> Mapping[str, Rule] | None:
    """Return the rules of a node's class, or None if there is no class to ask.

    Code of others is not imported, since an identity may be a stored one.
    """
    owner = OWNERS.get(path)
    if owner is None:
        target = node.get("_target_") if isinstance(node, Mapping) else None
        if not isinstance(target, str):
            return None
        owner = target_object(target) if is_ours(target) else None
    rules: Mapping[str, Rule] = getattr(owner, "matters_from", {})
    return rules
