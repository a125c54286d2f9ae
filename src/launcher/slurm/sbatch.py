"""The sbatch script of a job or array and its problems."""

import math
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.process.child import ENTRY
from launcher.slurm import scheduler
from launcher.slurm.size import GUARD, JobSize

SCRIPT = "LAUNCHER_SCRIPT"
"""The variable with the script of the job that a process belongs to."""


TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def time_limit(value: object) -> float | None:
    """Return the seconds of a time limit of SLURM, or None if it is not one.

    SLURM itself (22.05) takes a negative one for years, and 0 for no limit.
    """
    if str(value).upper() in ("INFINITE", "UNLIMITED"):
        return math.inf
    if (match := TIME.fullmatch(str(value))) is None:
        return None
    days, *clock = match.groups("0")
    # It begins with hours after days, or if it has three parts, and otherwise with minutes.
    if match[1] is None and match[4] is None:
        clock = ["0", *clock]
    hours, minutes, seconds, *_ = map(int, clock)
    return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds or None


def runs_path(script: Path) -> Path:
    return script.with_name(f"runs-{script.stem.partition('-')[2]}.txt")


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

    def command(self, path: Path) -> str:
        """Return the script's body.

        It finds the folder of its run, or of its several runs (see `launcher.slurm.shared_job`), by
        the array's task, and writes its output to the log there.

        Between Python's start and the first handler, a signal would kill a task. So the task starts
        with signals ignored, and queries SLURM about missed signals once it runs. Without
        --export=ALL, a job with --export=NONE would start its tasks without PATH.
        """
        shell = 'trap "" TERM USR1 USR2; exec "$@"'
        task = [*self.prefix, self.python, "-u", *ENTRY[1:], "task"]
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
        lines = [
            f"#SBATCH --{key}{'' if value is True else f'={shlex.quote(str(value))}'}"
            for key, value in sorted(flags.items())
        ]
        return "\n".join(["#!/bin/bash", "", *lines, "", self.command(path), ""])


def findings(script: Script) -> Iterator[str]:
    """Yield a message for each problem of a submission that SLURM does not reject."""
    flags = script.flags
    delay = int(str(flags["signal"]).partition("@")[2])
    limit = flags.get("time")
    if (time_limit(limit) or math.inf) <= delay:
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
