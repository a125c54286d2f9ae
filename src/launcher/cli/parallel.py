"""Several jobs of a sweep at a time (`dispatch.parallel`), each as a process of its own."""

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.cli.live import LiveTable
from launcher.cli.sweep_job import SweepJob
from launcher.config.options import TRAIN_JOB
from launcher.dispatch.local import private_folder
from launcher.dispatch.pool import Pool
from launcher.dispatch.result import JobResult
from launcher.process import signals
from launcher.process.table import Table
from launcher.rundir.folder import RunFolder, step_name
from launcher.runs.format import number as short
from launcher.runs.listing import COLORS
from launcher.runs.stored_run import StoredRun

PAUSE = 0.3
"""Seconds between two checks of the processes."""


class JobPool(Pool):
    """A pool whose jobs write their results."""

    def keep_output(self, number: int, run: RunFolder) -> None:
        """Append what an ended job has printed to a log of its run."""
        kept = run.logs / "output.log"
        with suppress(OSError):
            if run.logs.is_dir() and not kept.is_symlink():
                with kept.open("ab") as log:
                    log.write(self._log(number).read_bytes())

    def _results(self, number: int) -> list[str]:
        return [str(self._result(number))]

    def _result(self, number: int) -> Path:
        return self.folder / "jobs" / f"{self._name(number)}.json"

    def value(self, number: int) -> Any:
        """Read the result of a job, or None if it did not write one."""
        try:
            return json.loads(self._result(number).read_bytes())
        except (OSError, ValueError):
            return None


class Queue:
    """Runs the jobs of a sweep, at most `slots` at a time.

    Args:
        jobs: jobs that are already checked.
        slots: number of jobs that run at a time.
        is_done: whether a job has nothing to do, so that it need not start.
        fail_fast: stop at the first job that fails.
    """

    def __init__(
        self,
        jobs: Sequence[SweepJob],
        slots: int,
        is_done: Callable[[SweepJob], bool],
        fail_fast: bool,
    ):
        self.jobs, self.slots, self.is_done, self.fail_fast = jobs, slots, is_done, fail_fast
        self.waiting = deque(range(len(jobs)))
        self.results: dict[int, JobResult] = {}
        self.display = LiveTable()

    def run(self) -> list[JobResult]:
        """Run all jobs; return their results in order.

        Raises:
            signals.SignalExit: a signal came, and the running jobs have saved.
            SystemExit: a job failed, and `fail_fast` is set; the others have saved.
        """
        with private_folder() as folder, self.display:
            pool = JobPool(folder, self.slots)
            try:
                self._work(pool)
                if self.fail_fast and self.failed:
                    self._stop(pool, "sweep.fail_fast")
                    raise SystemExit(1)
            except signals.SignalExit:
                self._stop(pool, "Stopped")
                raise
            finally:
                pool.close()
        return [self.results[index] for index in range(len(self.jobs))]

    @property
    def failed(self) -> list[int]:
        return [index for index, result in self.results.items() if result.error is not None]

    def _work(self, pool: JobPool) -> None:
        while self.waiting or pool.running():
            signals.check()
            for index, code in pool.ended().items():
                self._settle(pool, index, code)
            if self.fail_fast and self.failed:
                return
            for index in list(self.waiting):
                if len(pool.running()) < self.slots and self._is_ready(index):
                    self.waiting.remove(index)
                    self._start(pool, index)
            self._show(pool)
            if pool.running():
                time.sleep(PAUSE)

    def _is_ready(self, index: int) -> bool:
        """Return whether a job need not wait for the run that it leaves."""
        job = self.jobs[index]
        if job.trunk is None or any(self.jobs[done] is job.trunk for done in self.results):
            return True
        checkpoint = RunFolder(job.trunk.folder).checkpoints / step_name(job.start)
        return (checkpoint / "manifest.json").exists()

    def _start(self, pool: JobPool, index: int) -> None:
        job = self.jobs[index]
        if self.is_done(job):
            self.results[index] = JobResult()
            self.display.say(f"{job.label}: completed")
            return
        self.display.say(f"{job.label}: starts")
        pool.start(index, job.config)

    def _settle(self, pool: JobPool, index: int, code: int) -> None:
        job = self.jobs[index]
        pool.keep_output(index, RunFolder(job.folder))
        if code == 0:
            self.results[index] = JobResult(pool.value(index))
            self.display.say(f"{job.label}: completed{outcome(job)}")
            return
        text = _recorded(job) or pool.why(index, code)
        error: BaseException = (
            SystemExit(code) if code == 2 or _recorded(job) else ChildProcessError(text)
        )
        if code == 2:
            error.add_note(text)
        self.results[index] = JobResult(error=error)
        # No log has these lines.
        for line in [] if code == 2 or job.config.folder.logs.is_dir() else pool.last_lines(index):
            self.display.say(line)
        self.display.say(f"{job.label}: {'rejected' if code == 2 else 'failed'}: {text}")

    def _stop(self, pool: JobPool, why: str) -> None:
        running = sorted(pool.running())
        codes = pool.close()
        for index in running:
            pool.keep_output(index, RunFolder(self.jobs[index].folder))
        ended = [index for index in running if codes.get(index) == 0]
        more = f", {len(ended)} more completed" if ended else ""
        counts = f"{len(running) - len(ended)} saved{more}, {len(self.waiting)} not started"
        self.display.say(f"{why}: {counts}; the same command resumes them.")

    # ---------------------------------------------------------------------------------------- table
    def _show(self, pool: JobPool) -> None:
        if not self.display.is_live:
            return
        running = sorted(pool.running())
        done, failed = len(self.results) - len(self.failed), len(self.failed)
        counts = {
            "done": done,
            "failed": failed,
            "running": len(running),
            "waiting": len(self.waiting),
        }
        heading = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        self.display.draw(
            self._table([*running, *self.waiting][: self.display.rows], {*running}), heading
        )

    def _table(self, indices: Sequence[int], running: set[int]) -> Table:
        rows = []
        for index in indices:
            job = self.jobs[index]
            stored = StoredRun.read(job.folder) if index in running else None
            shown = " ".join(override for override in job.overrides if override not in job.common)
            state = "waiting" if stored is None else "running"
            step, loss = ("-", "-")
            if stored is not None and stored.record:
                step, loss = stored.progress, short(stored.record.get("loss"))
            rows.append([str(index + 1), job.run, shown, state, step, loss])
        return Table(
            ["job", "run", "differs in", "state", "step/max", "train/loss"],
            rows,
            right=frozenset((0, 4, 5)),
            shrinks=(2, 1),
            styles={
                (row, 3): COLORS["running"] for row, index in enumerate(indices) if index in running
            },
        )


def outcome(job: SweepJob) -> str:
    """The best value of a job that trained: `, val/loss 0.16`."""
    if job.plain["job"]["_target_"] != TRAIN_JOB:
        return ""
    best = StoredRun.read(job.folder).best
    return f", {best['metric']} {short(best['value'])}" if best else ""


def _recorded(job: SweepJob) -> str | None:
    """The reason in the record of a run that has failed."""
    stored = StoredRun.read(job.folder)
    return stored.failure if stored.record.get("state") == "failed" else None
