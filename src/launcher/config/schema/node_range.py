"""Size of a SLURM job: its number of nodes (a number, or a range as `1-4`), and a node's ranks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RANGE = re.compile(r"([1-9]\d*)-([1-9]\d*)")


@dataclass(frozen=True)
class NodeRange:
    min: int
    max: int

    @classmethod
    def parse(cls, nodes: object) -> "NodeRange | None":
        """Parse `dispatch.nodes`; return None if it is neither a number of nodes nor a range."""
        if type(nodes) is int and nodes > 0:
            return cls(nodes, nodes)
        match = RANGE.fullmatch(nodes) if isinstance(nodes, str) else None
        if match is None or int(match[1]) > int(match[2]):
            return None
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.min}-{self.max}" if self.is_open else str(self.min)

    @property
    def is_open(self) -> bool:
        """Return whether two attempts may have different numbers of nodes."""
        return self.min < self.max

    @property
    def counts(self) -> range:
        return range(self.min, self.max + 1)


def ranks_per_node(dispatch: Mapping[str, Any]) -> int:
    """Return the ranks of a run on one node.

    A value of a wrong type, which the schema reports, counts as none.
    """
    for key in ("tasks_per_node", "gpus_per_node"):
        value = dispatch.get(key)
        if type(value) is int and value > 0:
            return value
    return 1
