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


@dataclass(frozen=True)
class RankRange:
    """The ranks of an attempt, as far as its configuration says; 1 for `nproc=auto`."""

    nodes: NodeRange
    per_node: int
    nproc: int | None

    @classmethod
    def of(cls, dispatch: object) -> "RankRange":
        node = dispatch if isinstance(dispatch, Mapping) else {}
        nodes = NodeRange.parse(node.get("nodes")) or NodeRange(1, 1)
        return cls(nodes, ranks_per_node(node), _count(node, "nproc"))

    @property
    def fewest(self) -> int:
        return (self.nproc or self.per_node) * self.nodes.min

    @property
    def source(self) -> str:
        """The keys that decide the number."""
        source = f"dispatch.nproc={self.nproc}" if self.nproc else f"{self.per_node} per node"
        if self.nodes.max > 1:
            return f"{source} x {self.nodes} nodes"
        return source


def ranks_per_node(dispatch: Mapping[str, Any]) -> int:
    """Return the ranks of a run on one node."""
    return _count(dispatch, "tasks_per_node") or _count(dispatch, "gpus_per_node") or 1


def _count(node: Mapping[str, Any], key: str) -> int | None:
    """Return a positive whole number; any other value, which the schema reports, is None."""
    value = node.get(key)
    return value if type(value) is int and value > 0 else None
