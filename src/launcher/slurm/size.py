"""Number of nodes and tasks of a job."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.config.schema.node_range import NodeRange
from launcher.errors import ConfigError

GUARD = Path(__file__).with_name("batch.sh")
"""File of the script's shell functions, which is copied next to it."""


@dataclass(frozen=True)
class JobSize:
    """The number of nodes and ranks."""

    nodes: NodeRange = field(default_factory=lambda: NodeRange(1, 1))
    ranks_per_node: int = 1
    lanes: int | None = None
    """`trainer.lanes`. A launch uses the largest number of its nodes whose ranks divide it."""

    @classmethod
    def of(cls, nodes: int | str, ranks_per_node: int) -> "JobSize":
        parsed = NodeRange.parse(nodes)
        if parsed is None:
            raise ConfigError(
                f"dispatch.nodes='{nodes}': should be a number of nodes, or the fewest and the"
                " most; e.g. dispatch.nodes=1-4."
            )
        return cls(parsed, ranks_per_node)

    def flags(self, cpus_per_task: int | None) -> dict[str, Any]:
        """Return the flags of sbatch.

        With a range of nodes, tasks per node would cap the job at the fewest nodes, since SLURM
        gives a job no more nodes than its tasks need.
        """
        tasks = {"ntasks-per-node": self.ranks_per_node, "cpus-per-task": cpus_per_task}
        if self.nodes.is_open:
            tasks = {"mincpus": self.ranks_per_node * (cpus_per_task or 1)}
        return {"nodes": str(self.nodes), **tasks}

    def command(self) -> str:
        on_nodes = f"on_nodes {self.ranks_per_node} {self.lanes or 0}"
        return on_nodes if self.nodes.is_open else "guarded srun"
