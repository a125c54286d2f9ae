"""A sweep whose jobs a launcher of submitit submits, as `hydra/launcher=submitit_slurm`.

It prints nothing, raises its first failure while other jobs run, and waits forever for a job that
was cancelled before it started. So Hydra runs in a second thread. This one reads the ids of the
jobs from submitit's folder, and the runs tell how the jobs have ended.
"""

import glob
import os
import sys
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
from launcher.process.plural import plural
from launcher.rundir.lock_holder import is_held
from launcher.runs.slurm_jobs import ask_ends, join_queue
from launcher.runs.stored_run import StoredRun
from launcher.slurm import scheduler
from launcher.slurm.submission import sbatch_message

SUBMITTED = "_submitted.pkl"
"""End of the name of a file that submitit writes for each job; the rest is the job's id."""
PAUSE = 2.0
"""Seconds between two looks at submitit's folder, and at SLURM's queue."""
PATIENCE = 30.0
"""Seconds from the end of all jobs until submitit's result is not awaited any more."""


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
    errors: list[BaseException] = []

    def work() -> None:
        try:
            enter()
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=work, name="hydra", daemon=True)
    worker.start()
    while worker.is_alive() and not reporter.have_all_left():
        _check_signals(reporter)
        worker.join(PAUSE)
        reporter.look()
    if not errors and not worker.is_alive():
        return conclude(jobs, [])
    if errors and not (reporter.ids and reporter.trains):
        raise _explained(errors[0], launcher)
    while reporter.is_any_open():
        _check_signals(reporter)
        time.sleep(PAUSE)
    conclude(jobs, [_result(job, reporter.ids.get(job.index)) for job in jobs])


def _explained(error: BaseException, launcher: str) -> BaseException:
    """Return SLURM's rejection of the jobs as a message, and other errors as they are."""
    if isinstance(error, Exception) and "sbatch: error:" in str(error):
        return ConfigError(f"hydra/launcher={launcher}: {sbatch_message(error)}.")
    return error


def _check_signals(reporter: "Reporter") -> None:
    if signals.first_signal():
        count = plural(len(reporter.ids), "submitted job")
        print(f"This command no longer waits for {count}.", file=sys.stderr, flush=True)
        signals.check()


class Reporter:
    """Prints a line for each job once submitit has its id.

    `ids` has the id of each submitted job, by the job's index.
    """

    def __init__(self, jobs: Sequence[Job], folder: str, is_local: bool):
        self.jobs = list(jobs)
        self.is_local = is_local
        place = expand(folder.replace("%j", "*"))
        self.pattern = f"{place}{os.sep}*{SUBMITTED}"
        self.before = set(glob.glob(self.pattern))
        self.ids: dict[int, str] = {}
        self.trains = all(job.config.trains for job in self.jobs)
        """Only a run that trains records its end."""
        self._left_at: float | None = None

    def look(self) -> None:
        """Report the jobs that are new, in the order in which submitit has stored them."""
        kind = "process" if self.is_local else "SLURM job"
        for path in sorted(set(glob.glob(self.pattern)) - self.before, key=_age):
            self.before.add(path)
            if len(self.ids) < len(self.jobs):
                job = self.jobs[len(self.ids)]
                number = Path(path).name.removesuffix(SUBMITTED)
                self.ids[job.index] = number
                say(f"{job.label}: {kind} {number}, {job.folder.path}")

    def have_all_left(self) -> bool:
        """Return whether all jobs have ended a while ago, though submitit waits for one."""
        if not self.trains or not self.ids or self.is_any_open():
            self._left_at = None
            return False
        self._left_at = self._left_at or time.monotonic()
        return time.monotonic() > self._left_at + PATIENCE

    def is_any_open(self) -> bool:
        queue = {} if self.is_local else scheduler.queue()
        return queue is None or any(
            number in queue or is_held(self.jobs[index].folder)
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
    if number is None:
        return JobResult(error=ChildProcessError("was not submitted"))
    state = scheduler.find_ends({(number, ""): True}).get((number, ""))
    text = f"SLURM job {number}: {state or 'it has ended before its run began'}"
    return JobResult(error=ChildProcessError(text))
