"""The settings of `dispatch=slurm`, and the flags and script of a job that follow from them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from launcher.config.messages import show
from launcher.config.schema.node_range import ranks_per_node
from launcher.config.tree import get, walk
from launcher.dispatch.child_command import ENTRY
from launcher.dispatch.jobs import Job
from launcher.errors import ConfigError
from launcher.rundir.secret_patterns import SECRET_TEXT, holds_secret
from launcher.slurm.sbatch import TIME, JobSize, Script
from launcher.types import NonEmptyText, NonNegativeInt, PositiveInt

OURS = {
    "array": "-m for several runs",
    "cpus-per-task": "dispatch.cpus_per_task",
    "gpus-per-node": "dispatch.gpus_per_node",
    "nodes": "dispatch.nodes",
    "ntasks": "dispatch.tasks_per_node",
    "ntasks-per-node": "dispatch.tasks_per_node",
    "no-requeue": "dispatch.sbatch.requeue=false",
    "signal": "dispatch.signal_delay",
    "test-only": "dispatch.dry_run=true",
    "wait": "dispatch.wait=true",
}
"""Flags of sbatch that cannot be set, and what to use instead."""


@dataclass
class SlurmSettings:
    """The settings of a submission.

    Args:
        nodes: nodes per run. With 1-4, as many of them as SLURM can give, at each launch.
        gpus_per_node: GPUs per node. With 0, the run uses CPUs.
        tasks_per_node: ranks per node. Default null: one per GPU, or one without GPUs.
        cpus_per_task: CPUs per rank. Default null: the cluster's default.
        mem: memory per node, e.g. 32G. Default null: the cluster's default.
        time: time limit of one launch, in minutes or as 1-12:00:00. Default null: the partition's.
            A longer run is requeued.
        partition, account, qos, constraint, exclude: as in sbatch. Default null: the cluster's
            default.
        array_parallelism: at most this many runs of a sweep at once. Default null: no limit.
        signal_delay: the run saves and requeues itself this many seconds before the time limit.
        setup: lines of shell before the run starts.
        prefix: command before Python, e.g. [apptainer, exec, --nv, image.sif].
        sbatch: further flags of sbatch by their long names, e.g. {nodelist: n1}. The value true
            makes a bare flag, false leaves it out.
        srun: further flags of srun, e.g. [--cpu-bind=cores].
        max_preemptions: at most this many requeues after preemptions. Default null: no limit.
        max_timeouts: at most this many requeues at the time limit. Default null: no limit.
        max_fruitless_restarts: the run fails after this many restarts in a row without a newer
            checkpoint.
        wait: wait until all runs have ended, and return their metrics.
        dry_run: print the script and its problems, and submit nothing.
        snapshot: run a copy of the code, so that later edits do not reach queued or requeued runs.
        python: interpreter on the nodes. Default null: this one.
    """

    code_keys = ("setup", "prefix", "python", "srun", "sbatch")
    trials = "jobs"

    nodes: PositiveInt | str = 1
    gpus_per_node: NonNegativeInt = 0
    tasks_per_node: PositiveInt | None = None
    cpus_per_task: PositiveInt | None = None
    mem: NonEmptyText | None = None
    time: PositiveInt | str | None = None
    partition: NonEmptyText | None = None
    account: NonEmptyText | None = None
    qos: NonEmptyText | None = None
    constraint: NonEmptyText | None = None
    exclude: NonEmptyText | None = None
    array_parallelism: PositiveInt | None = None
    signal_delay: PositiveInt = 120
    setup: list[str] | None = None
    prefix: list[str] | None = None
    sbatch: dict[str, object] | None = None
    srun: list[str] | None = None
    max_preemptions: NonNegativeInt | None = None
    max_timeouts: NonNegativeInt | None = None
    max_fruitless_restarts: NonNegativeInt | None = 3
    wait: bool = False
    dry_run: bool = False
    snapshot: bool = False
    python: str | None = None

    def __post_init__(self) -> None:
        self._check_secrets()
        for flag, value in (self.sbatch or {}).items():
            instead = OURS.get(flag.replace("_", "-"))
            if instead is not None:
                raise ConfigError(f"dispatch.sbatch.{flag}: Launcher sets it; use {instead}.")
            if isinstance(value, list | dict):
                key = f"dispatch.sbatch.{flag}"
                raise ConfigError(f"{key}={show(value)}: should be text; e.g. '{key}=\"a,b\"'.")
        # An invalid range of nodes makes `flags` raise.
        limit = self.flags()["time"]
        if limit is not None and limit is not False and not TIME.fullmatch(str(limit)):
            key = "dispatch.sbatch.time" if "time" in (self.sbatch or {}) else "dispatch.time"
            raise ConfigError(
                f"{key}={show(limit)}: should be minutes above 0, or days-hours:minutes:seconds;"
                f" e.g. {key}=90 or {key}=1-12:00:00."
            )

    def _check_secrets(self) -> None:
        """Check that no secret would be in the job's script, where values are resolved."""
        for path, value in walk(vars(self), lists=True):
            if isinstance(value, str) and (
                holds_secret(path.rpartition(".")[2], value) or SECRET_TEXT.search(value)
            ):
                raise ConfigError(
                    f"dispatch.{path}: a secret would be stored in the job's script; export it as a"
                    " variable of the shell, which a job inherits."
                )

    @property
    def size(self) -> JobSize:
        """Return the size of a job."""
        return JobSize.of(self.nodes, ranks_per_node(vars(self)))

    def flags(self) -> dict[str, object]:
        """Return the flags of sbatch by their long names, with None for flags that are not set."""
        names = ("mem", "time", "partition", "account", "qos", "constraint", "exclude")
        flags = {
            **self.size.flags(self.cpus_per_task),
            "gpus-per-node": self.gpus_per_node or None,
            **{name: getattr(self, name) for name in names},
            "signal": f"USR2@{self.signal_delay}",
            "requeue": True,
            **(self.sbatch or {}),
        }
        # The user's defaults. As variables, they would win over the script.
        for name in ("account", "partition", "qos", "reservation"):
            if flags.get(name) is None:
                flags[name] = os.environ.get(f"SBATCH_{name.upper()}") or None
        return flags

    def srun_flags(self) -> list[str]:
        # The number of cores is not inherited since SLURM 22.05. Where it is not set, a step has
        # all cores of a node that the job has alone.
        flags = [f"--cpus-per-task={self.cpus_per_task}"] if self.cpus_per_task else []
        return [*flags, *(self.srun or [])]

    def script(self, runs: Sequence[Job], snapshot_lines: list[str]) -> Script:
        # A script serves all runs: a number that divides the fewest lanes, a power of two,
        # divides all.
        lanes = [n for run in runs if (n := get(run.plain, "trainer.lanes")) is not None]
        script = Script(
            str(runs[0].plain["run"]["name"]),
            self.flags(),
            self.srun_flags(),
            self.prefix or [],
            [*(self.setup or []), *snapshot_lines],
            size=replace(self.size, lanes=min(lanes, default=None)),
            task=[*ENTRY[1:], "task"],
        )
        if self.python is not None:
            script.python = self.python
        return script
