"""The jobs of a sweep on this machine: in turn in this process, or several at a time, each as one.

`dispatch.parallel` is the number of jobs at a time.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial

from launcher.config.explain import unwrap_cause, user_traceback
from launcher.config.run_config import RunConfig
from launcher.dispatch import forced_exit
from launcher.dispatch.environment import join_ranks
from launcher.dispatch.jobs import Job, JobResult
from launcher.dispatch.local import private_folder
from launcher.dispatch.pool import Pool
from launcher.dispatch.queue import run_queue
from launcher.dispatch.start import start_run
from launcher.errors import REJECTED, TrainingError
from launcher.process import deadline, signals
from launcher.process.child import describe_end, last_lines
from launcher.rundir.folder import step_name
from launcher.rundir.provenance import slurm_job_id
from launcher.runs.format import number as short
from launcher.runs.stored_run import StoredRun
from launcher.slurm.causes import Budget
from launcher.slurm.requeue import run_guarded

SAME_SIGNAL = 2.0
"""Seconds within which a signal that has ended a job reaches this process too."""


def run_here(config: RunConfig) -> JobResult:
    """Run a job to its end in this process. An exit that no signal caused is its result."""
    try:
        return JobResult(start_run(config))
    except SystemExit as stop:
        is_code = isinstance(stop.code, int)
        if isinstance(stop, signals.SignalExit) or (is_code and int(stop.code or 0) >= 128):
            raise
        return JobResult(error=stop)
    except Exception as error:
        if not isinstance(error, TrainingError):
            print(user_traceback(error), end="", file=sys.stderr, flush=True)
        return JobResult(error=error)


class Processes(Pool):
    """Runs each job as a process, with its share of the GPUs."""

    def reap(self) -> dict[int, int]:
        # A process that hangs after a signal ends itself.
        deadline.progress()
        return super().reap()

    def result(self, job: Job, number: int, code: int) -> JobResult:
        if code == 0 and self.has_returned(number):
            return JobResult(self.value(number))
        if code == 0:
            end = f"{describe_end(code)} in the middle of the run (os._exit?)"
            return JobResult(error=ChildProcessError(end))
        stored = StoredRun.read(job.config.folder.path)
        recorded = stored.failure if stored.recorded_state == "failed" else None
        error: BaseException = SystemExit(code)
        if code == REJECTED:
            error.add_note(recorded or self.why(number, code))
        elif not recorded:
            error = ChildProcessError(self.why(number, code))
        return JobResult(error=error)

    def keep_output(self, job: Job, number: int) -> list[str]:
        """Append what an ended job has printed to a log of its run, or return its last lines."""
        logs = job.config.folder.logs
        if not logs.is_dir():
            return last_lines(self.log(number), 20)
        output = logs / "output.log"
        with suppress(OSError):
            if not output.is_symlink():
                with output.open("ab") as log:
                    log.write(self.log(number).read_bytes())
        return []


@dataclass
class SweepQueue:
    """Runs the jobs of a sweep, at most `slots` at a time.

    Args:
        jobs: jobs that are already checked.
        slots: number of jobs that run at a time.
        is_done: whether a job has nothing to do, so that it need not start.
    """

    jobs: Sequence[Job]
    slots: int
    is_done: Callable[[Job], bool]

    def __post_init__(self) -> None:
        self.waiting = deque(range(len(self.jobs)))
        self.results: dict[int, JobResult] = {}
        self.pool: Processes | None = None

    def run(self) -> list[JobResult]:
        """Run all jobs; return their results in order.

        In a SLURM job that ends, the job is requeued once the running jobs have saved. Its next
        launch skips the completed ones and resumes the others.

        Raises:
            signals.SignalExit: a signal came, and the running jobs have saved.
        """
        # Ranks of one run follow the decision of its rank 0.
        if slurm_job_id() is None or join_ranks():
            return self._run()
        if self.slots > 1:
            forced_exit.arm(self.jobs[0].plain["dispatch"])
        unlimited = Budget(max_fruitless_restarts=None)
        return run_guarded(self._run, None, unlimited, [job.folder for job in self.jobs])

    def _run(self) -> list[JobResult]:
        with ExitStack() as stack:
            try:
                if self.slots > 1:
                    self.pool = Processes(stack.enter_context(private_folder()), self.slots)
                    stack.callback(self.pool.close)
                    pause = partial(time.sleep, 0.3)
                    run_queue(self.pool, self.slots, self._start_next, self._look, pause)
                else:
                    signals.check()
                    while self._start_next():
                        signals.check()
            except SystemExit:
                self._stop()
                raise
        return [self.results[index] for index in range(len(self.jobs))]

    def _start_next(self) -> bool:
        index = next(filter(self._is_ready, self.waiting), None)
        if index is None:
            return False
        self.waiting.remove(index)
        job = self.jobs[index]
        if self.is_done(job):
            self.results[index] = JobResult()
            say(f"{job.label}: completed{outcome(job)}")
            return True
        say(f"{job.label}: starts")
        if self.pool is None:
            self._settle(index, run_here(job.config))
        else:
            self.pool.start(index, job.config)
        return True

    def _is_ready(self, index: int) -> bool:
        """Return whether a job need not wait for the run that it leaves."""
        job = self.jobs[index]
        if job.trunk is None or any(self.jobs[done] is job.trunk for done in self.results):
            return True
        checkpoint = job.trunk.config.folder.checkpoints / step_name(job.start)
        return (checkpoint / "manifest.json").exists()

    def _look(self, ended: dict[int, int]) -> None:
        assert self.pool is not None
        if any(map(has_got_signal, ended.values())):
            # SLURM signals all processes of its job, so the signal reaches this one too.
            time.sleep(SAME_SIGNAL)
            signals.check()
        for index, code in ended.items():
            job = self.jobs[index]
            for line in self.pool.keep_output(job, index):
                if code not in (0, REJECTED):
                    say(line)
            self._settle(index, self.pool.result(job, index, code))

    def _settle(self, index: int, result: JobResult) -> None:
        job = self.jobs[index]
        self.results[index] = result
        text = f"completed{outcome(job)}" if result.error is None else reason(job, result)
        say(f"{job.label}: {text}")

    def _stop(self) -> None:
        running = set(range(len(self.jobs))) - self.results.keys() - set(self.waiting)
        codes: dict[int, int] = {}
        if self.pool is not None:
            codes = self.pool.close()
            for index in sorted(running):
                self.pool.keep_output(self.jobs[index], index)
        completed = sum(codes.get(index) == 0 for index in running)
        counts = {
            "saved": len(running) - completed,
            "more completed": completed,
            "not started": len(self.waiting),
        }
        texts = [f"{count} {name}" for name, count in counts.items() if count]
        if texts:
            say(f"Stopped: {', '.join(texts)}; the same command resumes them.")


def has_got_signal(code: int) -> bool:
    """Return whether a process has ended by a signal, with or without a save."""
    return code - 128 in signals.HANDLED or -code in signals.HANDLED


def say(line: str) -> None:
    print(line, flush=True)


def outcome(job: Job) -> str:
    """The best value of a job that trained: `, val/loss 0.16`."""
    if not job.config.trains:
        return ""
    best = StoredRun.read(job.config.folder.path).best
    return f", {best['metric']} {short(best['value'])}" if best else ""


def reason(job: Job, result: JobResult) -> str:
    """Return the reason of a job's failure in a line."""
    assert result.error is not None
    error = unwrap_cause(result.error)
    if isinstance(error, ChildProcessError):
        # A killed process leaves its run as it was, which a listing calls by the same word.
        state = StoredRun.read(job.config.folder.path).state
        return f"{'stale' if state == 'stale' else 'failed'}: {error}"
    if not isinstance(error, SystemExit):
        return f"failed: {type(error).__name__}: {first_line(str(error))}"
    notes = getattr(error, "__notes__", None)
    if notes:
        return f"rejected: {notes[0]}"
    recorded = StoredRun.read(job.config.folder.path).attempt.get("reason")
    if recorded:
        return f"failed: {first_line(recorded)}"
    return f"failed with exit code {error.code}"


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
