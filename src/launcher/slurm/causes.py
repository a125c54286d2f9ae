"""Causes of a signal inside a SLURM job, and the job's reactions.

Rank 0 asks SLURM after the save. As observed on a real cluster:

| `scontrol show job` after the save | so the job | we |
|---|---|---|
| BatchFlag=0 | is a person's allocation | leave |
| Restarts is higher than at our start | has been requeued already | leave |
| it is pending, Restarts is not higher | is known by an older state | leave: it starts again |
| the same, it has ended and has a RunTime | and was then cancelled | leave, and must not requeue |
| PreemptTime is set, and it runs | is preempted | requeue it, also under CANCEL |
| PreemptTime is set, and is its EndTime | the same, its grace is over | requeue it |
| that at the signal, with grace and REQUEUE | was cancelled in that second | leave, no requeue |
| Reason=TimeLimit; or it runs, SIGUSR1 or 2 | is at its time limit | requeue it |
| CANCELLED; or it is completing, without a Reason | was cancelled | leave, and must not requeue |
| it has ended, none of the above | has failed (node, batch script, deadline) | leave |
| it runs, and SIGTERM | is not touched: a bare kill | leave |
| the same, but SLURM may not know (`forgets`) | may have been preempted | requeue it |
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from launcher.process.plural import plural
from launcher.slurm.scheduler import CANCELLED, ENDING, JobInfo

Cause = Literal[
    "requeued",
    "preempted",
    "timed out",
    "cancelled",
    "failed",
    "ended by hand",
    "cause unknown",
]
Action = Literal["leave", "requeue", "fail"]
UnrecordedEnd = Literal["cancelled", "failed", "preempted"]
"""The end of a run by SLURM's state of its job, which could not record it."""
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
SAME_MOMENT = 2.0
"""Seconds between a signal and the end of a job that are one event."""
LATE_SIGNALS = 120.0
"""Seconds after a restart in which a signal may have been meant for the previous launch."""


def cause_of(info: JobInfo, signum: int, restarts: int) -> Cause:
    """Find the cause by the table above, without its last row.

    Args:
        info: the job after the signal.
        signum: the signal.
        restarts: restarts of the job when this process was launched.
    """
    if not info.is_batch:
        return "ended by hand"
    if info.restarts > restarts:
        if info.state == ENDING:
            return "cancelled" if info.has_run else "requeued"
        return _end_of(info) or "requeued"
    if info.is_waiting:
        return "requeued"
    is_preempted = info.preempted_at is not None and (
        info.is_running or info.end == info.preempted_at
    )
    if is_preempted or info.state == "PREEMPTED":
        return "preempted"
    if info.reason == "TimeLimit" or info.state == "TIMEOUT":
        return "timed out"
    return _end_of(info) or ("timed out" if signum in WARNINGS else "ended by hand")


def _end_of(info: JobInfo) -> Literal["cancelled", "failed"] | None:
    """Return how a job has ended, or None if it runs or waits.

    While processes of a job still end, SLURM hides its state. It then has a reason for each end
    (NodeDown, JobLaunchFailure, DeadLine) but a cancellation.
    """
    if info.is_running or info.is_waiting:
        return None
    was_cancelled = info.state == CANCELLED or (info.state == ENDING and not info.has_reason)
    return "cancelled" if was_cancelled else "failed"


def unrecorded_end(state: str, recorded: str | None) -> UnrecordedEnd | None:
    """Return how a run has ended whose job has left SLURM's queue, or None: not known.

    Args:
        state: SLURM's last state of the job.
        recorded: the state in run.json. After `preempted` it has saved, and exits with the signal's
            code, which SLURM calls FAILED.
    """
    if state == CANCELLED:
        return "cancelled"
    if state == "PREEMPTED":
        return "preempted"
    if state in ("FAILED", "TIMEOUT"):
        return None if recorded == "preempted" else "failed"
    if state in ("BOOT_FAIL", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY"):
        return "failed"
    return None


def forgets(info: JobInfo, received_at: float, booted_at: float | None) -> bool:
    """Return whether a signal may be SLURM's although SLURM shows no cause.

    Its controller may have restarted since, which forgets preemptions, or the job may have just
    restarted, and the signal was meant for its previous launch. Times are in seconds since the
    epoch.
    """
    if booted_at is not None and booted_at >= received_at:
        return True
    return info.restarts > 0 and info.start is not None and received_at - info.start < LATE_SIGNALS


def was_ended_at(info: JobInfo, received_at: float) -> bool:
    """Return whether the job's end, in whole seconds, came with the signal."""
    return not info.is_running and info.end is not None and received_at > info.end - SAME_MOMENT


@dataclass(frozen=True)
class Budget:
    """Maximum numbers of requeues and of restarts without a newer checkpoint, or None."""

    max_preemptions: int | None = None
    max_timeouts: int | None = None
    max_fruitless_restarts: int | None = 3

    @classmethod
    def of(cls, dispatch: Mapping[str, Any]) -> "Budget":
        return cls(**{key: dispatch[key] for key in cls.__dataclass_fields__ if key in dispatch})

    def fruitless(self, restarts: int) -> str | None:
        """Explain why a job does not start again after restarts without a newer checkpoint."""
        limit = self.max_fruitless_restarts
        if limit is None or restarts <= limit:
            return None
        return (
            f"was restarted {plural(restarts, 'time')} in a row without a new checkpoint "
            f"(dispatch.max_fruitless_restarts={limit}): it is not restarted again"
        )


def decide(cause: Cause, budget: Budget, before: int) -> tuple[Action, str | None]:
    """Decide the reaction to a cause for which the job has requeued itself `before` times.

    Returns:
        The reaction, and why the job fails, if it does.
    """
    key = {"preempted": "max_preemptions", "timed out": "max_timeouts"}.get(cause)
    if key is None:
        return "requeue" if cause == "cause unknown" else "leave", None
    limit = getattr(budget, key)
    if limit is None or before < limit:
        return "requeue", None
    return "fail", (
        f"{cause} more than {plural(limit, 'time')} (dispatch.{key}={limit}): it is not requeued;"
        " the same command resumes it"
    )
