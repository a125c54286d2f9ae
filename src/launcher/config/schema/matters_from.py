"""The rules of `matters_from`, by which a class says from which step on its keys change a run.

`matters_from` maps a key to a rule, and `*` to the rule of all keys. A rule gets the class's
settings in two identities (None where one has no such part) and both identities, and returns the
number of first steps that are bitwise identical. A key without a rule matters from the first step.
"""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.config.tree import Node, walk

ALL_STEPS = sys.maxsize
"""The steps of any run."""
CODE_PATH = re.compile(r"[^\W\d]\w*([.:][^\W\d]\w*)+")
"""A text that may be the path of a class or function: `package.module.name`."""


@dataclass(frozen=True)
class Pair:
    """Two identities, in which `trainer.max_steps` is a number.

    Args:
        lines: reads what the other run has logged, by step; nothing if it has not begun.
    """

    one: Node
    other: Node
    lines: Callable[[], Sequence[Node]] = tuple

    @property
    def steps_before_an_end(self) -> int:
        """The steps before the last one of the shorter run, which is always logged."""
        lengths = [tree["trainer"]["max_steps"] for tree in (self.one, self.other)]
        return 0 if None in lengths else min(lengths) - 1

    @property
    def has_own_hooks(self) -> bool:
        """Return whether a hook of either run calls code of the user, which may ask for anything.

        A hook in which they differ has no common step.
        """
        return any(names_own_code(tree.get("hooks")) for tree in (self.one, self.other))


Rule = Callable[[Any, Any, Pair], int]


def never(one: Node | None, other: Node | None, pair: Pair) -> int:
    """The rule of a key that changes no number and no logged line."""
    return ALL_STEPS


def before_last_line(one: Node | None, other: Node | None, pair: Pair) -> int:
    """The rule of a key whose effect follows from the logged lines."""
    lines = pair.lines()
    return int(lines[-1]["step"]) if lines else 0


def before_an_end(one: Node, other: Node, pair: Pair) -> int:
    """The rule of the length of a run, which a user's own hook may ask for at any step."""
    has_epochs = [node.get("max_epochs") is not None for node in (one, other)]
    if pair.has_own_hooks or has_epochs[0] != has_epochs[1]:
        return 0
    return pair.steps_before_an_end


def names_own_code(node: object) -> bool:
    """Return whether a text in a node may be the path of a class or function of the user."""
    texts = [value for _, value in walk(node, lists=True) if isinstance(value, str)]
    return any(CODE_PATH.fullmatch(text) and not is_ours(text) for text in texts)


def is_ours(target: object) -> bool:
    return str(target).startswith("launcher.")
