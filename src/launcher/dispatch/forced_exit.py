"""How long a run may take to leave after a signal before the process exits by force."""

import math
import os
import time

from omegaconf import DictConfig

from launcher.run import deadline
from launcher.run.provenance import slurm_job_id
from launcher.slurm import scheduler

SPARE = 5.0
"""Seconds before SLURM's SIGKILL, left for requeueing the job."""
EARLY = 60.0
"""SLURM may send the warning of a time limit up to this many seconds too early."""


def arm(config: DictConfig) -> None:
    """Exit by force after `dispatch.grace` seconds without progress after a signal (in SLURM jobs
    `dispatch.signal_delay`), and on rank 0 in any case shortly before SLURM would kill the job."""
    grace, job = config.dispatch.get("grace", config.dispatch.get("signal_delay")), slurm_job_id()
    if job is None or int(os.environ.get("RANK", 0)) != 0:
        deadline.arm(grace)
    else:
        deadline.arm(grace, lambda: seconds_left(job, grace))


def seconds_left(job: str, grace: float | None) -> float | None:
    """Seconds until the run must have left; None: not known. Then SLURM does not answer, or it shows no end that is
    near enough to be what the signal was about: a preemption may not be visible yet."""
    try:
        info = scheduler.job_info(job)
    except scheduler.SchedulerError:
        return None
    left = scheduler.kill_wait()
    if info.is_running:
        left += math.inf if info.end is None else max(0.0, info.end - time.time())
    if left == math.inf or (grace is not None and left > grace + EARLY):
        return None
    return max(left - SPARE, left / 2)
