"""The task of a SLURM job that has several runs: the queue of a sweep, inside the job.

Each run is a process of its own (`launcher.dispatch.slurm_task`), with its share of the node's GPUs
and cores, and its output in its own log. SLURM signals all processes of the job. When all runs have
saved, this process requeues the job, and its next launch resumes the runs that have not ended.
"""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from launcher.config.run_config import from_stored
from launcher.config.schema.node_range import ranks_per_node
from launcher.dispatch import forced_exit
from launcher.dispatch.pool import Pool
from launcher.dispatch.queue import run_queue
from launcher.dispatch.slurm_task import close
from launcher.dispatch.spawner import count_cores
from launcher.process import deadline, signals
from launcher.rundir.folder import RunFolder
from launcher.rundir.provenance import slurm_job_id
from launcher.slurm.causes import Budget
from launcher.slurm.job_mark import CANCEL
from launcher.slurm.not_started import record_silent_end, silent_end
from launcher.slurm.requeue import run_guarded
from launcher.slurm.sbatch import SCRIPT
from launcher.slurm.shared_job import is_open, own_record, runs_of, state_in
from launcher.slurm.submission import read_frozen

PAUSE = 1.0
"""Seconds between two checks of the runs."""
SAME_SIGNAL = 2.0
"""Seconds within which a signal that has ended a run reaches this process too."""
SIGNALLED = {128 + signum for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}
"""Exit codes of a run that has saved after a signal."""


def run_shared(path: Path) -> int:
    """Run the runs of a job that have not ended; return 1 if any has failed, in any launch."""
    folder, script = RunFolder(path), os.environ.get(SCRIPT)
    runs = [run for run in runs_of(folder) if is_open(run, script)]
    if not runs:
        print("All runs of this job have ended: nothing to do.", flush=True)
        return _has_failed(folder, script)
    dispatch = from_stored(*read_frozen(runs[0])).plain["dispatch"]
    forced_exit.arm(dispatch)
    pool = RunPool(runs, dispatch["runs_per_job"], ranks_per_node(dispatch))
    return run_guarded(pool.run, folder, Budget.of(dispatch)) or _has_failed(folder, script)


def _has_failed(folder: RunFolder, script: str | None) -> int:
    return int(any(state_in(run, script) == "failed" for run in runs_of(folder)))


class RunPool(Pool):
    """Processes of the runs of one job.

    Args:
        runs: run folders.
        slots: number of shares of the node, also if the job has fewer runs.
        ranks: number of ranks of a run.
    """

    def __init__(self, runs: Sequence[RunFolder], slots: int, ranks: int):
        super().__init__(runs[0].path, slots)
        self.runs = runs
        self.threads = str(max(1, count_cores() // (slots * ranks)))
        self.waiting = list(range(len(runs)))
        self.cancelled: set[int] = set()
        self.num_failed = 0
        self.is_stopped = False
        """A signal has ended a run."""

    def run(self) -> int:
        """Run all of them, and return 1 if any has failed, which leaves the others.

        A signal that ends the job is raised once all runs have saved.
        """
        try:
            run_queue(self, len(self.slots), self._start_next, self._look, self._sleep)
            if self.is_stopped:
                time.sleep(SAME_SIGNAL)
                signals.check()
        finally:
            self.close()
        return int(self.num_failed > 0)

    def _start_next(self) -> bool:
        if not self.waiting:
            return False
        number = self.waiting.pop(0)
        run = self.runs[number]
        if CANCEL.is_of(run, str(slurm_job_id())):
            self._record_cancelled(run)
            return True
        run.logs.mkdir(exist_ok=True)
        self.launch(number, "task", run.path)
        print(f"{run.path}: process {self.processes[number].pid}", flush=True)
        return True

    def environment(self, slot: int) -> dict[str, str]:
        return {"OMP_NUM_THREADS": self.threads, **super().environment(slot)}

    def log(self, number: int) -> Path:
        return self.runs[number].logs / f"slurm-{slurm_job_id()}.log"

    def reap(self) -> dict[int, int]:
        # A process that hangs after a signal ends itself.
        deadline.progress()
        return super().reap()

    def _look(self, ended: dict[int, int]) -> None:
        for number, code in ended.items():
            self._settle(number, code)
        for number in self.running() - self.cancelled:
            # `runs cancel` has noted it: it saves and ends.
            if CANCEL.is_of(self.runs[number], str(slurm_job_id())):
                self.cancelled.add(number)
                self.stop([number])

    def _sleep(self) -> None:
        time.sleep(PAUSE)

    def _settle(self, number: int, code: int) -> None:
        """Record the end of a run that could not do so."""
        run = self.runs[number]
        print(f"{run.path}: exit code {code}", flush=True)
        if number in self.cancelled:
            self._record_cancelled(run)
        elif signals.first_signal() or code in SIGNALLED:
            self.is_stopped = True
            self.num_failed += 1
        else:
            is_silent = record_silent_end(run, code)
            if code != 0 and not is_silent:
                close(run, silent_end(code))
            self.num_failed += is_silent or code != 0

    def _record_cancelled(self, run: RunFolder) -> None:
        if (record := own_record(run)) is not None:
            record.revise(
                "cancelled",
                reason="it was cancelled, and its SLURM job was not",
                slurm_job_id=slurm_job_id(),
            )
