"""A sweep whose jobs a launcher of submitit submits, as `hydra/launcher=submitit_slurm`.

It prints nothing, and raises its first failure while other jobs run. So a thread reads the ids of
its jobs from its folder, and the runs tell how the jobs have ended.
"""

import glob
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from launcher.cli.sweep import conclude
from launcher.cli.sweep_queue import say
from launcher.dispatch.jobs import Job, JobResult
from launcher.dispatch.slurm.waiting import result_of
from launcher.errors import ConfigError
from launcher.process import signals
from launcher.process.files import expand
from launcher.rundir.holder import is_held
from launcher.runs.find_runs import ask_ends, join_queue
from launcher.runs.stored_run import StoredRun
from launcher.slurm import scheduler
from launcher.slurm.submission import sbatch_message

SUBMITTED = "_submitted.pkl"
"""End of the name of a file that submitit writes for each job; the rest is the job's id."""
PAUSE = 1.0
"""Seconds between two looks at submitit's folder, or at the jobs that are left."""


def run_sweep(jobs: Sequence[Job], folder: str, launcher: str, enter: Callable[[], object]) -> None:
    """Let Hydra run the jobs; print a line for each one, and at the end what a sweep prints.

    Args:
        jobs: the jobs, in order.
        folder: the pattern of submitit's folders.
        launcher: the option, such as `submitit_slurm`.
        enter: lets Hydra run them.
    Raises:
        ConfigError: no job was submitted.
        SystemExit: a job has failed.
    """
    reporter = Reporter(jobs, folder, is_local=launcher == "submitit_local")
    results = [JobResult()] * len(jobs)
    with reporter:
        try:
            enter()
        except Exception as error:
            reporter.look()
            if not reporter.ids and type(error).__module__.startswith("submitit."):
                message = f"hydra/launcher={launcher}: {sbatch_message(error)}."
                raise ConfigError(message) from error
            # Only a run that trains records its end here.
            if not reporter.ids or not all(job.config.trains for job in jobs):
                raise
            reporter.wait()
            results = [_result(job, reporter.ids.get(job.index)) for job in jobs]
    conclude(jobs, results)


class Reporter:
    """Prints a line for each job once submitit has its id.

    Attributes:
        ids: the id of each submitted job, by the job's index.
    """

    def __init__(self, jobs: Sequence[Job], folder: str, is_local: bool):
        self.jobs, self.is_local = list(jobs), is_local
        place = expand(folder.replace("%j", "*"))
        self.pattern = f"{place}{os.sep}*{SUBMITTED}"
        self.before = set(glob.glob(self.pattern))
        self.ids: dict[int, str] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.look()

    def _follow(self) -> None:
        while not self._is_over.wait(PAUSE):
            self.look()

    def look(self) -> None:
        """Report the jobs that are new, in the order in which submitit has stored them."""
        with self._lock:
            paths = {path: _age(path) for path in set(glob.glob(self.pattern)) - self.before}
            for path in sorted(paths, key=lambda path: paths[path]):
                if len(self.ids) < len(self.jobs):
                    self._report(self.jobs[len(self.ids)], Path(path))
                self.before.add(path)

    def _report(self, job: Job, path: Path) -> None:
        number = path.name.removesuffix(SUBMITTED)
        self.ids[job.index] = number
        kind = "process" if self.is_local else "SLURM job"
        say(f"{job.label}: {kind} {number}, {job.folder.path}")

    def wait(self) -> None:
        """Wait for the jobs that have not ended."""
        while self._is_any_open():
            signals.check()
            time.sleep(PAUSE)

    def _is_any_open(self) -> bool:
        queue = None if self.is_local else scheduler.queue()
        is_silent = queue is None and not self.is_local
        return is_silent or any(
            number in (queue or {}) or is_held(self.jobs[index].folder)
            for index, number in self.ids.items()
        )


def _age(path: str) -> int:
    """Return when a file was written; 0 if it is gone, as submitit's is after the job."""
    with suppress(OSError):
        return os.stat(path).st_mtime_ns
    return 0


def _result(job: Job, number: str | None) -> JobResult:
    """Return the result of a job by its run, or by SLURM if it has not begun one."""
    stored = StoredRun.read(job.folder.path)
    if stored.record:
        if stored.had_job:
            join_queue([stored], {})
            ask_ends([stored])
        return result_of(job, stored)
    state = scheduler.find_ends({(number, ""): True}).get((number, "")) if number else None
    text = f"SLURM job {number}: {state or 'it has ended before its run began'}"
    return JobResult(error=ChildProcessError(text if number else "was not submitted"))
