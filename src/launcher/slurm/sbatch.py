"""The sbatch script of a job or array and its problems."""

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.config.schema.node_range import NodeRange
from launcher.errors import ConfigError
from launcher.slurm import scheduler

GUARD = Path(__file__).with_name("batch.sh")
"""File of the script's shell functions, which is copied next to it."""
SCRIPT = "LAUNCHER_SCRIPT"
"""The variable with the script of the job that a process belongs to."""


TIME = re.compile(r"(?=.*[1-9])(\d+-)?\d+(:\d+){0,2}|infinite|unlimited", re.IGNORECASE)
"""A time limit. SLURM itself (22.05) takes a negative one for years, and 0 for no limit."""


def runs_path(script: Path) -> Path:
    return script.with_name(f"runs-{script.stem.partition('-')[2]}.txt")


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


@dataclass
class Script:
    """The parts of a script. `launcher.dispatch.slurm.SlurmDispatch` describes the parameters."""

    name: str
    flags: dict[str, Any]
    """Options of sbatch by long name."""
    srun: list[str] = field(default_factory=list)
    prefix: list[str] = field(default_factory=list)
    """Commands around Python, e.g. a container's."""
    setup: list[str] = field(default_factory=list)
    python: str = field(default_factory=lambda: sys.executable)
    size: JobSize = field(default_factory=JobSize)
    task: Sequence[str] = field(kw_only=True)
    """Arguments of Python for a task of the job, before its run's folder."""

    def command(self, path: Path) -> str:
        """Return the script's body.

        It finds the folder of its run by the array's task, and writes its output to the log there.

        Between Python's start and the first handler, a signal would kill a task. So the task starts
        with signals ignored, and queries SLURM about missed signals once it runs. Without
        --export=ALL, a job with --export=NONE would start its tasks without PATH.
        """
        shell = 'trap "" TERM USR1 USR2; exec "$@"'
        task = [*self.prefix, self.python, "-u", *self.task]
        srun = shlex.join(
            [
                "--export=ALL",
                "--kill-on-bad-exit=1",
                *self.srun,
                "bash",
                "-c",
                shell,
                "launcher",
                *task,
            ]
        )
        pythons = dict.fromkeys([sys.executable] if self.prefix else [self.python, sys.executable])
        return "\n".join(
            [
                f"export {SCRIPT}={shlex.quote(str(path))}",
                f"mapfile -t __launcher_runs <{shlex.quote(str(runs_path(path)))}",
                "__launcher_run=${__launcher_runs[${SLURM_ARRAY_TASK_ID:-0}]}",
                "__launcher_job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}",
                'exec >>"$__launcher_run/logs/slurm-${__launcher_job:-$SLURM_JOB_ID}.log" 2>&1',
                f"__launcher_pythons=({shlex.join(pythons)})",
                f"source {shlex.quote(str(path.with_name(GUARD.name)))}",
                *(["set -e", *self.setup, "set +e"] if self.setup else []),
                f'{self.size.command()} {srun} "$__launcher_run"',
            ]
        )

    def text(self, path: Path, count: int | None, parallelism: int | None) -> str:
        """Return the script for `path`: an array of `count` tasks, or with None a plain job."""
        flags = {
            key.replace("_", "-"): value
            for key, value in self.flags.items()
            if value is not None and value is not False
        }
        if self.flags.get("requeue") is False:
            # Otherwise the cluster's JobRequeue counts.
            flags["no-requeue"] = True
        folder = str(path.parent).replace("%", "%%")
        defaults = {
            "job-name": self.name,
            "open-mode": "append",
            "output": f"{folder}/{'%j' if count is None else '%A_%a'}.out",
        }
        flags = defaults | flags
        flags.setdefault("error", flags["output"])
        if count is not None:
            flags["array"] = f"0-{count - 1}" + (f"%{parallelism}" if parallelism else "")
        lines = []
        for key, value in sorted(flags.items()):
            setting = "" if value is True else f"={shlex.quote(str(value))}"
            lines.append(f"#SBATCH --{key}{setting}")
        return "\n".join(["#!/bin/bash", "", *lines, "", self.command(path), ""])


def findings(script: Script) -> Iterator[str]:
    """Yield a message for each problem of a submission that SLURM does not reject."""
    flags = script.flags
    delay = int(str(flags["signal"]).partition("@")[2])
    limit = flags.get("time")
    if isinstance(limit, int) and limit * 60 <= delay:
        yield (
            f"dispatch.time={limit}: is not longer than dispatch.signal_delay={delay} s, so"
            " the warning comes at the start; use a longer time."
        )
    values = scheduler.partition_values(flags.get("partition"))
    preempts = values.get("PreemptMode", "OFF") not in ("OFF", "")
    if preempts and values.get("GraceTime", "0") == "0":
        yield (
            "dispatch.partition: it preempts without a grace (GraceTime=0), so a save has only"
            f" {scheduler.kill_wait():g} s (KillWait); keep hooks.checkpointing.interval short."
        )


def test_only(text: str) -> Iterator[str]:
    """Call `sbatch --test-only`, which submits nothing."""
    try:
        with scheduler.clean_environment():
            scheduler.call(["sbatch", "--test-only"], input=text)
    except scheduler.NoAnswer:
        yield "sbatch: does not answer."
    except scheduler.SchedulerError as error:
        reason = str(error).partition("failed: ")[2]
        for prefix in ("sbatch: error:", "allocation failure:"):
            reason = reason.replace(prefix, "")
        yield f"sbatch: would reject it: {' '.join(reason.split())}."
