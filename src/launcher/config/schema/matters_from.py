"""The rules of `matters_from`, by which a class says from which step on its keys change a run.

`matters_from` maps a key to a rule, and `*` to the rule of all keys. A rule gets the class's
settings in two identities (None where one has no such part) and both identities, and returns the
number of first steps that are bitwise identical. A key without a rule matters from the first step.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.config.tree import Node, walk

ALL_STEPS = sys.maxsize
"""The steps of any run."""


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
    hooks = walk(pair.one.get("hooks"), lists=True)
    own = [value for path, value in hooks if path.endswith("_target_") and not is_ours(value)]
    return 0 if own or has_epochs[0] != has_epochs[1] else pair.steps_before_an_end


def is_ours(target: object) -> bool:
    return str(target).startswith("launcher.")
