"""Requeues a SLURM job, leaves it, or fails, after a signal and once the state is durable.

For SLURM, a task that exits by itself within the grace period of a preemption has FAILED or
COMPLETED, and is never requeued. So we exit only once SLURM has confirmed the requeue.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from launcher.process import deadline, signals
from launcher.process.process_id import PARENT, WORLD_SIZE, own_rank
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock_holder import find_local_holder, is_held_in_job
from launcher.rundir.provenance import restart_count, slurm_job_id
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.slurm import scheduler
from launcher.slurm.causes import Budget, Cause, cause_of, decide, forgets, was_ended_at
from launcher.slurm.job_mark import CANCEL
from launcher.slurm.journal import Journal
from launcher.slurm.own_record import END_STATES, is_superseded, own_record
from launcher.slurm.scheduler import JobInfo, NoAnswer, SchedulerError

T = TypeVar("T")
QUERY_SECONDS = 300.0
"""Seconds of repeated queries if SLURM does not answer. It may end or requeue the job by itself."""
PAUSE = 2.0
"""Seconds until the query is repeated."""
SECOND_LOOK = 2.0
"""Seconds after a signal until a preemption is visible."""
STOP_KEY = "launcher/stop"
READ_KEY = "launcher/stop-read"

logger = logging.getLogger("launcher")


def run_guarded(
    work: Callable[[], T],
    folder: RunFolder | None,
    budget: Budget,
    runs: Sequence[RunFolder] = (),
) -> T:
    """Do the work of a run, a sweep or a search, and follow a signal that ends it in a SLURM job.

    Args:
        work: the work.
        folder: folder of its record, if there is one. A sweep has none.
        budget: the limits of restarts.
        runs: folders of a sweep's runs.
    """
    job = slurm_job_id()
    # An inherited id alone is no job.
    if job is None or "SLURM_JOB_NODELIST" not in os.environ:
        return work()
    policy = Requeue(folder, job, budget, runs=runs)
    # The parent of a search's trial, or of a run of a sweep, is in the same job. It stops them and
    # requeues.
    if PARENT in os.environ:
        return policy.without_requeue(work)
    try:
        with (
            deadline.on_forced_exit(policy.exit_by_force),
            deadline.on_signal(policy.request_early),
        ):
            try:
                policy.forget_cancellation()
                policy.begin()
                return work()
            except signals.SignalExit:
                # The deadline must not end this thread, which requeues the job and waits for SLURM.
                deadline.disarm()
                raise
    except signals.SignalExit as stop:
        if stop.signum == signal.SIGINT:
            raise
        raise policy.exit_after_signal(stop) from None


class Requeue:
    """The policy for one SLURM job, and for its run or sweep.

    Args:
        folder: folder of the run, with the job's journal. A sweep has none.
        runs: folders of a sweep's runs. If all that have not ended are cancelled, the job is.
    """

    def __init__(
        self,
        folder: RunFolder | None,
        job: str,
        budget: Budget,
        sleep: Callable[[float], None] = time.sleep,
        runs: Sequence[RunFolder] = (),
    ):
        self.folder = folder
        self.job = job
        self.budget = budget
        self.sleep = sleep
        self.runs = runs if folder is None else [folder]
        self.restarts = restart_count()
        self.requested: Cause | None = None
        """Cause for which we have requested a requeue from SLURM."""
        self.forced = ""
        self.attempts_before = 0
        self.is_reported = False
        self._requesting = threading.Lock()
        self._requests = 0

    @property
    def rank(self) -> int:
        return own_rank()

    def begin(self) -> None:
        """Record the launch, and reject it after too many preemptions or fruitless restarts.

        A signal that came before the handlers were installed ends it, too.
        """
        if self.rank != 0:
            return
        if self.folder is not None:
            run = RunOnDisk.read(self.folder)
            self.attempts_before = len(run.attempts)
            if run.record.get("state") == "completed":
                return
        journal = self._journal()
        journal.start(self.restarts, self._newest_step())
        # SLURM may have requeued it by itself.
        _, reason = decide("preempted", self.budget, journal.count("preempted") - 1)
        rejection = reason or self.budget.fruitless(journal.fruitless())
        if rejection:
            raise self._fail(f"SLURM job {self.job} {rejection}")
        try:
            info = scheduler.job_info(self.job)
        except SchedulerError:
            return
        if cause_of(info, signal.SIGTERM, self.restarts) != "ended by hand":
            raise signals.SignalExit(signal.SIGTERM)

    def forget_cancellation(self) -> None:
        """Let a job run that its user requeues after a cancellation."""
        if self.rank == 0:
            with suppress(OSError):
                for run in self.runs:
                    CANCEL.remove(run)

    def without_requeue(self, work: Callable[[], T]) -> T:
        """Do the work of one of several processes of the job, which requeue nothing."""
        self.begin()
        try:
            with deadline.on_forced_exit(self.end_by_force):
                return work()
        except signals.SignalExit:
            self._journal().requeue("requeued", self._newest_step(), self._has_trained())
            raise

    def exit_after_signal(self, stop: signals.SignalExit) -> SystemExit:
        """Return the exit to raise. Ranks other than 0 use rank 0's decision."""
        if int(os.environ.get(WORLD_SIZE, 1)) == 1:
            return self._settle(stop)
        if self.rank == 0:
            end = self._settle(stop)
            _announce(int(end.code or 0))
            return end
        code = _await_decision()
        if code is None:
            return stop
        return signals.SignalExit(stop.signum, code)

    def exit_by_force(self, signum: int, reason: str) -> None:
        """Requeue the job in a forced exit too, since it resumes from its last checkpoint."""
        if self.rank == 0 and signum != signal.SIGINT:
            self.forced = f"; {'its last step is saved. ' if self._is_saved() else ''}{reason}"
            self._settle(signals.SignalExit(signum))

    def end_by_force(self, signum: int, reason: str) -> None:
        """Record that the run is only preempted, since it resumes when its parent requeues."""
        if self.rank == 0 and signum not in (0, signal.SIGINT):
            self._revise("preempted", reason)

    def request_early(self, signum: int) -> None:
        """Request the requeue while the run still saves, if SLURM is ending the job.

        Under PreemptMode=CANCEL without a grace, the job has only KillWait, in which a slow
        controller does not answer after the save. `exit_after_signal` decides all other cases.
        """
        if self.rank != 0 or signum == signal.SIGINT:
            return
        try:
            info, cause = self._look(signals.SignalExit(signum))
            is_due = cause == "preempted" and not info.is_running
            before = self._journal().count(cause)
            if not is_due or decide(cause, self.budget, before)[0] != "requeue":
                return
            with self._requesting:
                if self._requests:
                    return
                self._request(cause)
            # The process may be killed before it comes to `_record_exit`, which completes the
            # entry.
            self._journal().requeue(cause, self._newest_step())
        except SchedulerError as error:
            logger.debug("SLURM job %s: not requeued while saving: %s", self.job, error)

    def _request(self, cause: Cause) -> None:
        self.requested = cause
        self._requests += 1
        scheduler.requeue(self.job)
        if self._is_cancel_noted():  # it came between our look and the requeue
            scheduler.cancel([self.job])

    def _settle(self, stop: signals.SignalExit) -> SystemExit:
        """Follow the signal.

        Repeat queries until SLURM answers, and until it shows a requeue that we have requested,
        since an earlier exit would end the job for good.
        """
        waited = 0.0
        rejection = None
        while True:
            began, pause = time.monotonic(), 0.5
            # A request that is under way is waited for, since our look could come before it.
            with self._requesting:
                requests = self._requests
            try:
                info, cause = self._look(stop)
                journal = self._journal()
                action, reason = decide(cause, self.budget, journal.count(cause))
                if action == "leave":
                    self._record_exit(cause, info, journal)
                    return stop
                if action == "fail":
                    return self._fail(f"SLURM job {self.job} {reason}")
                if rejection is not None:
                    return self._fail(
                        f"SLURM job {self.job} {cause}, and could not be requeued: {rejection}"
                    )
                # Right after the check: a cancelled job must not be requeued.
                with self._requesting:
                    if self._requests == requests:  # else `request_early` has just requested it
                        self._request(cause)
            except NoAnswer as error:
                self._report_silence(stop, error)
                pause = PAUSE
            except SchedulerError as error:
                # The job may have been requeued already.
                rejection = error
            if waited >= QUERY_SECONDS:
                return stop
            self.sleep(pause)
            waited += max(pause, time.monotonic() - began)

    def _look(self, stop: signals.SignalExit) -> tuple[JobInfo, Cause]:
        """Return the job as SLURM shows it, and the cause of the signal."""
        info = scheduler.job_info(self.job)
        cause = cause_of(info, stop.signum, self.restarts)
        age = time.monotonic() - stop.received_at
        if cause == "ended by hand" and age < SECOND_LOOK:
            self.sleep(SECOND_LOOK - age)
            info = scheduler.job_info(self.job)
            cause = cause_of(info, stop.signum, self.restarts)
        received_at = time.time() - (time.monotonic() - stop.received_at)
        if cause == "preempted" and was_ended_at(info, received_at):
            # The job was cancelled in the second in which it was preempted, since at the end of a
            # grace period, SLURM would have requeued it.
            with_grace = scheduler.preempts_by_requeue(with_grace=True)
            cause = "cancelled" if with_grace else cause
        if cause == "ended by hand" and info.is_batch and stop.signum:
            cause = "cause unknown" if forgets(info, received_at, scheduler.boot_time()) else cause
        if self._is_cancel_noted():
            cause = "cancelled"
        logger.debug("SLURM job %s: %s.", self.job, cause)
        return info, cause

    def _record_exit(self, cause: Cause, info: JobInfo, journal: Journal) -> None:
        """Record why the job ends, when nothing has to be requested from SLURM."""
        logger.info(
            "SLURM job %s: %s.",
            self.job,
            cause if self.requested is None else f"{self.requested}, {cause}",
        )
        if cause == "cancelled":
            self._revise("cancelled", "the SLURM job was cancelled")
        elif cause == "failed":
            self._revise("failed", f"SLURM ended the job: {info}")
        elif cause == "requeued":
            counted = "preempted" if scheduler.preempts_by_requeue() else cause
            journal.requeue(self.requested or counted, self._newest_step(), self._has_trained())
            reason = (
                "requeued by SLURM" if self.requested is None else f"{self.requested}, requeued"
            )
            self._revise("preempted", reason)

    def _report_silence(self, stop: signals.SignalExit, error: NoAnswer) -> None:
        if self.is_reported or not stop.signum:
            return
        self.is_reported = True
        name = signal.Signals(stop.signum).name
        reason = f"SLURM job {self.job} got {name}, and SLURM does not answer why: {error}"
        logger.error(
            "%s. Asking again for %g s; SLURM may requeue the job by itself.", reason, QUERY_SECONDS
        )
        self._revise("preempted", reason)

    def _fail(self, reason: str) -> SystemExit:
        logger.error("%s.", reason)
        self._revise("failed", reason, exit_code=1)
        return SystemExit(1)

    def _has_trained(self) -> bool:
        """Return whether this launch has completed a step. Only then can it have saved one."""
        if self.folder is None:
            return True
        begun = RunOnDisk.read(self.folder).attempts[self.attempts_before :]
        return any((attempt.get("end_step") or 0) > attempt["start_step"] for attempt in begun)

    def _is_saved(self) -> bool:
        """Return whether the run's attempt, whose end is recorded, has saved its last step."""
        if self.folder is None:
            return False
        return RunOnDisk.read(self.folder).attempt.get("end_step") == self._newest_step() > 0

    def _journal(self) -> Journal:
        return Journal(self.folder, self.job)

    def _newest_step(self) -> int:
        """Return the step of the newest checkpoint."""
        return 0 if self.folder is None else self.folder.newest_step()

    def _is_cancel_noted(self) -> bool:
        runs = [run for run in self.runs if not is_superseded(run) and self._is_open(run)]
        return bool(runs) and all(CANCEL.is_of(run, self.job) for run in runs)

    def _is_open(self, run: RunFolder) -> bool:
        return self.folder is not None or RunOnDisk.read(run).recorded_state not in END_STATES

    def _revise(self, state: Any, reason: str, exit_code: int | None = None) -> None:
        """Correct the end of this launch's attempt in run.json."""
        run = self.folder
        if run is None or not run.record_path.exists():
            return
        holder = find_local_holder(run)
        # A forced exit leaves the run held by this process.
        is_ours = holder is not None and holder.pid == os.getpid()
        if is_held_in_job(run) and not is_ours:
            return
        try:
            record = own_record(run)
            if record is not None:
                record.revise(
                    state,
                    reason=reason + self.forced,
                    exit_code=exit_code,
                    slurm_job_id=self.job,
                    num_earlier=self.attempts_before,
                )
        except OSError as error:
            logger.warning("%s could not be written: %s", run.record_path, error)


def _announce(code: int) -> None:
    """Publish the exit code to the other ranks, and keep the store until they have read it."""
    from launcher.process import ranks

    if not ranks.has_met():
        return
    try:
        store = ranks.store()
        store.set(STOP_KEY, str(code))
        others = int(os.environ[WORLD_SIZE]) - 1
        until = time.monotonic() + 5
        while store.add(READ_KEY, 0) < others and time.monotonic() < until:
            time.sleep(0.02)
    except RuntimeError as error:
        logger.debug("The other ranks did not get the exit code: %s", error)


def _await_decision() -> int | None:
    """Wait for rank 0's exit code, or return None if rank 0 is gone.

    No rank exits earlier, since with srun's --kill-on-bad-exit the first exit ends all.
    """
    from launcher.process import ranks

    if not ranks.has_met():
        # Rank 0 acts, and SLURM or srun ends this one.
        time.sleep(60)
        return None
    try:
        store = ranks.store()
        store.wait([STOP_KEY], timedelta(seconds=QUERY_SECONDS + 60))
        code = int(store.get(STOP_KEY))
        store.add(READ_KEY, 1)
        return code
    # The store raises a RuntimeError once rank 0 is gone.
    except RuntimeError as error:
        logger.debug("Rank 0 has announced no exit code: %s", error)
        return None
