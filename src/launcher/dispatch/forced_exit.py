"""How long a step may take after a signal before the process exits by force."""

import os
import signal
from functools import cache

from omegaconf import DictConfig

from launcher.run import deadline
from launcher.run.provenance import slurm_job_id
from launcher.slurm import scheduler

SPARE = 5.0
"""Seconds before the end of SLURM's grace, left for requeueing the job."""


def arm(config: DictConfig) -> None:
    """Exit by force after `dispatch.grace` seconds without progress, or shortly before SLURM would kill this
    process."""
    configured, warned = config.dispatch.get("grace"), config.dispatch.get("signal_delay")
    in_slurm = slurm_job_id() is not None

    def grace(signum: int) -> float | None:
        known = None
        if in_slurm:
            known = warned if signum in (signal.SIGUSR1, signal.SIGUSR2) else slurm_grace()
        spared = None if known is None else max(known - SPARE, known / 2)
        return min((seconds for seconds in (configured, spared) if seconds is not None), default=None)

    deadline.arm(grace)


@cache
def slurm_grace() -> float | None:
    """Seconds between SLURM's SIGTERM and its SIGKILL: the partition's grace, or at least KillWait; None where SLURM
    cannot be asked."""
    kill = scheduler.config_values("KillWait").get("KillWait", "").split()
    if not kill:
        return None
    partition = scheduler.partition_values(os.environ.get("SLURM_JOB_PARTITION"))
    return float(max(int(partition.get("GraceTime", 0)), int(kill[0])))
