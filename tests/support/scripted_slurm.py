"""SLURM's commands as shell scripts that answer from files: for what follows signals, where
no cluster runs.

What a real cluster answers is in `tests/unit/slurm/scontrol.txt`; `tests/end_to_end/slurm` runs on
one.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import localtime, strftime, time

import pytest

from launcher.rundir.folder import RunFolder
from launcher.slurm import scheduler
from launcher.slurm.sbatch import runs_path
from support.paths import TESTS

ANSWERS = dict(
    block.split("\n", 1)
    for block in (TESTS / "unit" / "slurm" / "scontrol.txt").read_text().split("## ")[1:]
)
"""Lines of `scontrol show job -o` by what had happened to the job."""

SCONTROL = """#!/bin/sh
echo "$@" >> "{folder}/calls"
[ ! -e "{folder}/slow" ] || sleep "$(cat "{folder}/slow")"
case "$1" in
show)
    [ ! -e "{folder}/down" ] || {{ echo "Unable to contact slurm controller" >&2; exit 1; }}
    [ "$2" = job ] || {{ cat "{folder}/config"; exit; }}
    number=$(ls "{folder}" | grep -c '^job-')
    asked=$(grep -c '^show job' "{folder}/calls")
    [ "$asked" -le "$number" ] || asked=$number
    cat "{folder}/job-$asked" ;;
requeue)
    [ ! -e "{folder}/rejection" ] || {{ cat "{folder}/rejection" >&2; exit 1; }}
    rm "{folder}"/job-*
    cp "{folder}/requeued" "{folder}/job-1" ;;
esac
"""

SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do
    case $1 in --nodelist=*) nodes=${{1#*=}} ;; --ntasks=*) tasks=${{1#*=}} ;; esac
    shift
done
[[ "$*" != "bash -c true" ]] || {{ echo empty >>"{folder}/steps"; exit; }}
echo "$tasks on $nodes" >>"{folder}/steps"
exec "$@"
"""


def iso(seconds: float) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S", localtime(seconds))


@dataclass
class ScriptedSlurm:
    """Answers of `scontrol`: one after the other for `show job`, the last one from then on."""

    folder: Path

    def install(self, patch: pytest.MonkeyPatch, restarts: int = 0) -> None:
        """Put the commands on PATH, and this process into job 6 as its only task."""
        (self.folder / "bin").mkdir(parents=True)
        for name, text in (("scontrol", SCONTROL), ("srun", SRUN)):
            command = self.folder / "bin" / name
            command.write_text(text.format(folder=self.folder))
            command.chmod(0o755)
        self.answer("killed by hand")
        (self.folder / "config").write_text("KillWait                = 30 sec\n")
        (self.folder / "requeued").write_text(ANSWERS["preempted without a grace, REQUEUE"])
        variables = {"SLURM_JOB_ID": "6", "SLURM_JOB_NODELIST": "node1"}
        # SLURM does not set it at first.
        variables |= {"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}
        for name in ("RANK", "WORLD_SIZE", "SLURM_RESTART_COUNT"):
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setenv("PATH", str(command.parent), prepend=os.pathsep)

    def answer(self, *names: str) -> None:
        for path in self.folder.glob("job-*"):
            path.unlink()
        (self.folder / "calls").write_text("")
        for number, name in enumerate(names, 1):
            (self.folder / f"job-{number}").write_text(ANSWERS[name])

    def change(self, **times: float) -> None:
        """Change times of the first answer."""
        path = self.folder / "job-1"
        for name, seconds in times.items():
            text = re.sub(rf" {name}=\S+", f" {name}={iso(seconds)}", path.read_text())
            path.write_text(text)

    def requeue_as(self, name: str, restarts: int = 1) -> None:
        """Set the output of `scontrol show job` after a requeue."""
        (self.folder / "requeued").write_text(
            ANSWERS[name].replace("Restarts=1", f"Restarts={restarts}")
        )

    def reject(self, text: str) -> None:
        """Let `scontrol requeue` fail."""
        (self.folder / "rejection").write_text(text)

    def slow_down(self, seconds: float) -> None:
        (self.folder / "slow").write_text(str(seconds))

    def stop_answering(self) -> None:
        (self.folder / "down").touch()

    def answer_again(self) -> None:
        """The controller restarts and has forgotten the preemption."""
        (self.folder / "down").unlink()
        (self.folder / "config").write_text(f"BOOT_TIME               = {iso(time() + 2)}\n")

    @property
    def steps(self) -> list[str]:
        """The tasks that srun has started, and their nodes."""
        path = self.folder / "steps"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def calls(self) -> list[str]:
        return [line.split(" -o")[0] for line in (self.folder / "calls").read_text().splitlines()]


@dataclass
class ScriptedJob:
    script: str
    folder: RunFolder
    state: str = "PENDING"
    starts: int = 0
    was_listed: bool = False
    end: str = "CANCELLED"
    """SLURM's state of it after its end."""


@dataclass
class ScriptedQueue:
    """SLURM's queue in this process: a job waits for one call of squeue, runs until the next one,
    and has ended, or is requeued.

    Args:
        work: what a job does, by its run and the number of its start; True: it is requeued.
    """

    work: Callable[[RunFolder, int], bool]
    jobs: dict[str, ScriptedJob] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)
    """The run's id of each job that was ever submitted."""
    cancelled: list[str] = field(default_factory=list)
    ended: dict[str, ScriptedJob] = field(default_factory=dict)
    """Jobs that were cancelled, or that SLURM has ended, with their last states."""
    rejection: str = ""
    is_down: bool = False
    arrays: int = 0
    most: int = 0
    """The most jobs that were in the queue at once."""

    def install(self, patch: pytest.MonkeyPatch, folder: Path) -> "ScriptedQueue":
        (folder / "bin").mkdir()
        (folder / "bin" / "squeue").touch(0o755)
        patch.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)
        patch.delenv("RANK", raising=False)
        patch.setattr(scheduler, "call", self.call)
        return self

    def call(self, command: Sequence[str], timeout: float = 0) -> str:
        if self.is_down:
            raise scheduler.NoAnswer(f"{command[0]} did not answer")
        if command[0] == "sbatch":
            return self.submit(Path(command[-1]))
        if command[0] == "scancel":
            for job in command[1:]:
                self.cancel(job)
        if "--states=all" in command:
            # SLURM has no record of an array's task that was cancelled before it started.
            known = [(name, job) for name, job in self.ended.items() if job.state != "PENDING"]
            return "\n".join(f"{name}|{job.end}|{job.script}" for name, job in known)
        return self.list() if command[0] == "squeue" else ""

    def submit(self, script: Path) -> str:
        if self.rejection:
            raise scheduler.SchedulerError(f"sbatch: error: {self.rejection}")
        folders = [RunFolder(line) for line in runs_path(script).read_text().splitlines()]
        number, is_array = len(self.submitted) + 1, "#SBATCH --array" in script.read_text()
        self.arrays += is_array
        for index, folder in enumerate(folders):
            self.jobs[f"{number}_{index}" if is_array else str(number)] = ScriptedJob(
                str(script), folder
            )
            self.submitted.append(folder.path.name)
        self.most = max(self.most, len(self.jobs))
        return str(number)

    def cancel(self, job: str) -> None:
        self.cancelled.append(job)
        if job in self.jobs:
            self.ended[job] = self.jobs.pop(job)

    def lose(self, job: str, state: str) -> None:
        """Let SLURM end a job before its run can record it."""
        self.ended[job] = self.jobs.pop(job)
        self.ended[job].end = state

    def list(self) -> str:
        for name, job in list(self.jobs.items()):
            if not job.was_listed:
                job.was_listed = True
            elif job.state == "COMPLETING":
                del self.jobs[name]
            elif job.state == "RUNNING":
                job.state = "PENDING"
                if not self.work(job.folder, job.starts):
                    self.jobs.pop(name, None)
            else:
                job.state = "RUNNING"
                job.starts += 1
        return "\n".join(
            f"{name}|{job.state}|{'Priority' if job.state == 'PENDING' else 'None'}"
            f"|node1|{job.script}"
            for name, job in self.jobs.items()
        )
