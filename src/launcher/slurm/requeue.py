"""After a signal inside a SLURM job, once the state is durable: requeue the job, leave it, or fail.

A task that exits by itself within the grace of a preemption is FAILED or COMPLETED for SLURM, and never requeued; so we
exit only once SLURM has confirmed the requeue. `scontrol requeue` makes SLURM signal the job again at once, and with it
the `scontrol` (see `scheduler.call`). `launcher.slurm.causes` tells what a signal meant.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from omegaconf import DictConfig

from launcher.run import deadline, signals
from launcher.run.folder import RunFolder
from launcher.run.holder import is_held
from launcher.run.provenance import slurm_job_id
from launcher.run.record import RunRecord
from launcher.slurm import scheduler
from launcher.slurm.causes import RUNNING, Budget, Cause, cause_of, decide
from launcher.slurm.journal import Journal
from launcher.slurm.scheduler import SchedulerError

T = TypeVar("T")
CONFIRMATION = 30.0
"""Seconds that SLURM may take to show a requeue that it has accepted."""
STAY = 300.0
"""Seconds that we wait for SLURM to end us if it does not answer."""
SECOND_LOOK = 2.0
"""A preemption may not be visible until this many seconds after the signal."""
STOP_KEY, READ_KEY = "launcher/stop", "launcher/stop-read"

logger = logging.getLogger("launcher")


def guarded(config: DictConfig, work: Callable[[], T]) -> T:
    """Do a job's work. If a signal ends it inside a SLURM job, do what the signal asks for.

    Raises:
        signals.Stop: with the exit code for SLURM.
        SystemExit: the budget is used up, or a requeue failed.
    """
    job = slurm_job_id()
    if job is None or "SLURM_JOB_NODELIST" not in os.environ:  # the id alone may be left over
        return work()
    policy = Requeue(RunFolder(config.run.dir), job, Budget.of(config.dispatch))
    try:
        policy.begin()
        with deadline.on_forced_exit(policy.leave_by_force):
            return work()
    except signals.Stop as stop:
        deadline.disarm()  # from here on we wait for SLURM
        if stop.signum == signal.SIGINT:
            raise
        raise policy.leave(stop) from None


class Requeue:
    """The policy for one SLURM job and its run."""

    def __init__(self, folder: RunFolder, job: str, budget: Budget, sleep: Callable[[float], None] = time.sleep):
        self.folder, self.job, self.budget, self.sleep = folder, job, budget, sleep
        self.restarts = int(os.environ.get("SLURM_RESTART_COUNT", 0))

    @property
    def rank(self) -> int:
        return int(os.environ.get("RANK", 0))

    def begin(self) -> None:
        """Record the start; refuse it if restarts make no progress; catch up on a signal from before the handlers were
        installed.

        Raises:
            SystemExit: the restarts make no progress.
            signals.Stop: the job is already being ended.
        """
        if self.rank != 0 or self._record().state == "completed":
            return
        journal = Journal(self.folder, self.job)
        journal.start(self.restarts, self.folder.newest_step())
        if refusal := self.budget.fruitless(journal.fruitless()):
            raise self._fail(f"SLURM job {self.job} {refusal}")
        try:
            info = scheduler.job_info(self.job, tries=1)
        except SchedulerError:
            return
        if cause_of(info, signal.SIGTERM, self.restarts) != "ended by hand":
            raise signals.Stop(signal.SIGTERM)

    def leave(self, stop: signals.Stop) -> SystemExit:
        """The exit to raise; ranks other than 0 use rank 0's decision."""
        if int(os.environ.get("WORLD_SIZE", 1)) == 1:
            return self._settle(stop)
        if self.rank == 0:
            end = self._settle(stop)
            _announce(int(end.code or 0))
            return end
        code = _await_decision()
        return stop if code is None else signals.Stop(stop.signum, code)

    def leave_by_force(self, signum: int, reason: str) -> None:
        """A forced exit requeues the job too: it resumes from its last checkpoint."""
        if self.rank == 0 and signum != signal.SIGINT:
            self._settle(signals.Stop(signum))

    def _settle(self, stop: signals.Stop) -> SystemExit:
        try:
            cause = self._ask(stop)
        except SchedulerError as error:
            return self._stay(stop, error)
        logger.info("SLURM job %s: %s after %s.", self.job, cause, signal.Signals(stop.signum).name)
        journal = Journal(self.folder, self.job)
        decision = decide(cause, self.budget, journal.count(cause))
        if decision.action == "fail":
            return self._fail(f"SLURM job {self.job} {decision.reason}")
        if decision.action == "requeue":
            return self._requeue(stop, cause, journal)
        if cause == "cancelled":
            self._revise("cancelled", "cancelled", "the SLURM job was cancelled")
        elif cause == "requeued":
            journal.requeue(cause, self.folder.newest_step())
            self._revise("preempted", "preempted", "requeued by SLURM")
        return stop

    def _requeue(self, stop: signals.Stop, cause: Cause, journal: Journal) -> SystemExit:
        self._revise("preempted", "preempted", f"{cause}, requeued")
        journal.requeue(cause, self.folder.newest_step())
        try:
            scheduler.requeue(self.job)
            self._confirm()
        except SchedulerError as error:
            if not self._is_requeued():
                return self._fail(f"SLURM job {self.job} {cause}, and could not be requeued: {error}")
        logger.info("SLURM job %s is requeued.", self.job)
        return stop

    def _ask(self, stop: signals.Stop) -> Cause:
        cause = cause_of(scheduler.job_info(self.job), stop.signum, self.restarts)
        left = stop.received_at + SECOND_LOOK - time.monotonic()
        if cause == "ended by hand" and left > 0:
            self.sleep(left)
            cause = cause_of(scheduler.job_info(self.job), stop.signum, self.restarts)
        return cause

    def _confirm(self) -> None:
        """Wait until the requeue is visible: an earlier exit would end the job for good.

        Raises:
            SchedulerError: it does not become visible.
        """
        for _ in range(int(CONFIRMATION / 0.5)):
            info = scheduler.job_info(self.job)
            if info.restarts > self.restarts or info.state not in RUNNING:
                return
            self.sleep(0.5)
        raise SchedulerError(f"SLURM accepted the requeue, but shows the job as running after {CONFIRMATION:g} s")

    def _is_requeued(self) -> bool:
        try:
            return scheduler.job_info(self.job).restarts > self.restarts
        except SchedulerError:
            return False

    def _stay(self, stop: signals.Stop, error: SchedulerError) -> SystemExit:
        """SLURM does not answer. We stay, so that it can still requeue the job by itself."""
        end = self._fail(
            f"SLURM job {self.job} got {signal.Signals(stop.signum).name}, and SLURM does not answer why: {error}"
        )
        logger.info("Staying for up to %g s, so that SLURM may requeue the job by itself.", STAY)
        self.sleep(STAY)
        return end

    def _fail(self, reason: str) -> SystemExit:
        logger.error("%s.", reason)
        if not logging.getLogger().handlers:
            print(f"{reason}.", file=sys.stderr, flush=True)
        self._revise("failed", "failed", reason, exit_code=1)
        return SystemExit(1)

    def _record(self) -> RunRecord:
        return RunRecord(self.folder)

    def _revise(self, state: Any, outcome: Any, reason: str, exit_code: int | None = None) -> None:
        """Correct the end of this job's attempt in run.json; other attempts are not touched."""
        if not self.folder.record_path.exists() or is_held(self.folder):
            return
        try:
            self._record().revise(state, outcome, reason=reason, exit_code=exit_code, slurm_job_id=self.job)
        except OSError as error:
            logger.warning("%s could not be written: %s", self.folder.record_path, error)


def _announce(code: int) -> None:
    """Publish the exit code to the other ranks, and keep the store alive until they have read it."""
    from launcher.run import ranks

    if not ranks.has_met():
        return
    try:
        store = ranks.store()
        store.set(STOP_KEY, str(code))
        others = int(os.environ["WORLD_SIZE"]) - 1
        deadline = time.monotonic() + 5
        while store.add(READ_KEY, 0) < others and time.monotonic() < deadline:
            time.sleep(0.02)
    except Exception as error:
        logger.debug("The other ranks did not get the exit code: %s", error)


def _await_decision() -> int | None:
    """The exit code that rank 0 decided on; None if rank 0 is gone. No rank exits earlier: with srun's
    --kill-on-bad-exit, the first exit ends all."""
    from launcher.run import ranks

    if not ranks.has_met():
        time.sleep(60)  # rank 0 acts, and SLURM or srun ends this one
        return None
    try:
        store = ranks.store()
        store.wait([STOP_KEY], timedelta(seconds=STAY + 60))
        code = int(store.get(STOP_KEY))
        store.add(READ_KEY, 1)
        return code
    except Exception:
        return None
