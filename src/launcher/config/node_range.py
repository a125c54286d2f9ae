"""Number of nodes that a job may have: a number, or a range (`1-4`)."""

import re
from dataclasses import dataclass

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

    def plus(self, spares: int) -> "NodeRange":
        return NodeRange(self.min + spares, self.max + spares)
