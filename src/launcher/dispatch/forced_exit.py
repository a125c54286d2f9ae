"""Limit the time that a run may take to exit after a signal."""

import math
import time

from launcher.config.tree import Node
from launcher.process import deadline
from launcher.process.process_id import own_rank
from launcher.rundir.provenance import slurm_job_id
from launcher.slurm import scheduler

REQUEUE_SECONDS = 5.0
"""Seconds before SLURM's SIGKILL, left for requeueing the job."""
SIGNAL_LEAD_SECONDS = 60.0
"""SLURM may send the signal before a time limit up to this many seconds early."""


def arm(dispatch: Node) -> None:
    """Exit by force if a signal has come and no progress was made for `grace` seconds.

    In SLURM jobs the time is `signal_delay`, and rank 0 also exits shortly before SLURM would kill
    it.
    """
    grace, job = dispatch.get("grace", dispatch.get("signal_delay")), slurm_job_id()
    if job is None or own_rank() != 0:
        deadline.arm(grace)
    else:
        deadline.arm(grace, lambda: seconds_left(job, grace))


def seconds_left(job: str, grace: float | None) -> float | None:
    """Return the seconds until the run must have exited, if SLURM answers.

    It is None, too, if the job's end is too far away to be the reason for the signal, since a
    preemption may not be visible yet.
    """
    try:
        info = scheduler.job_info(job)
    except scheduler.SchedulerError:
        return None
    left = scheduler.kill_wait()
    if info.is_running:
        left += math.inf if info.end is None else max(0.0, info.end - time.time())
    if left == math.inf or (grace is not None and left > grace + SIGNAL_LEAD_SECONDS):
        return None
    return max(left - REQUEUE_SECONDS, left / 2)
