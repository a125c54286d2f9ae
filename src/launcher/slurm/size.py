"""Number of nodes and tasks of a job."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.config.node_range import NodeRange
from launcher.errors import ConfigError

GUARD, NODE_LOSS = (Path(__file__).with_name(name) for name in ("batch.sh", "node_loss.sh"))
"""Files of the script's shell functions, which are copied next to it."""
START, NOTED_START = 'exec "$@"', '"$@" || { code=$?; : >"$LAUNCHER_RANK_ENDED"; exit $code; }'
"""Command by which a task's shell starts Python."""


@dataclass(frozen=True)
class Size:
    """The number of nodes and ranks.

    `launcher.dispatch.slurm.SlurmDispatch` describes the parameters.
    """

    nodes: NodeRange = field(default_factory=lambda: NodeRange(1, 1))
    ranks_per_node: int = 1
    no_kill: bool = False
    spares: int = 0
    lanes: int | None = None
    """`trainer.lanes`. A launch uses the largest number of its nodes whose ranks divide it."""

    @classmethod
    def of(cls, nodes: int | str, ranks_per_node: int, no_kill: bool, spares: int) -> "Size":
        """Return the size that the settings describe.

        Raises:
            ConfigError: they do not fit together.
        """
        parsed = NodeRange.parse(nodes)
        if parsed is None:
            raise ConfigError(
                f"dispatch.nodes='{nodes}': should be a number of nodes, or the fewest and the"
                " most; e.g. dispatch.nodes=1-4."
            )
        if spares and not no_kill:
            raise ConfigError(
                f"dispatch.spares={spares}: is used only with dispatch.no_kill=true; set it too."
            )
        if no_kill and not spares and not parsed.is_open:
            raise ConfigError(
                f"dispatch.no_kill=true: a run that needs dispatch.nodes={nodes} cannot restart on"
                " fewer; use dispatch.spares=1 or a range, e.g."
                f" dispatch.nodes=1-{max(2, parsed.max)}."
            )
        return cls(parsed, ranks_per_node, no_kill, spares)

    @property
    def varies(self) -> bool:
        """Return whether the number of nodes is known only when the script runs."""
        return self.no_kill or self.nodes.is_open

    def flags(self, cpus_per_task: int | None) -> dict[str, Any]:
        """Return the flags of sbatch.

        With a range of nodes, a number of tasks per node would cap the job at the minimum number of
        nodes, since sbatch would count the tasks of the fewest nodes, and SLURM gives a job no more
        nodes than its tasks need.
        """
        tasks = {"ntasks-per-node": self.ranks_per_node, "cpus-per-task": cpus_per_task}
        if self.varies:
            tasks = {"mincpus": self.ranks_per_node * (cpus_per_task or 1)}
        return {
            "nodes": str(self.nodes.plus(self.spares)),
            "no-kill": self.no_kill or None,
            **tasks,
        }

    def command(self) -> str:
        """The shell command that starts the tasks."""
        ranks, lanes = self.ranks_per_node, self.lanes or 0
        if self.no_kill:
            return f"on_nodes_left {self.nodes.min} {self.spares} {ranks} {lanes}"
        return f"on_nodes {ranks} {lanes}" if self.varies else "guarded srun"

    @property
    def start(self) -> str:
        """The end of each task's shell script."""
        return NOTED_START if self.no_kill else START

    @property
    def functions(self) -> list[Path]:
        """The files of shell functions that the command needs."""
        return [GUARD, NODE_LOSS] if self.no_kill else [GUARD]
