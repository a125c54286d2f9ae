"""dispatch.wait=true: a live table until every run has ended, from run.json and one squeue a look."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from hydra.core.utils import JobReturn, JobStatus

from launcher.dispatch.submitted import Run, result
from launcher.run import signals
from launcher.run.logs import console
from launcher.runs import find, listing
from launcher.slurm import scheduler

Queue = dict[str, scheduler.QueuedJob] | None

PAUSE = 2.0
"""Seconds between two looks."""
GONE_LOOKS = 3
"""A job is taken for gone when so many looks in a row did not find it: SLURM may not list one for a moment."""
ENDED = ("completed", "failed", "cancelled")


def wait_for(runs: Sequence[Run], sleep: Callable[[float], None] = time.sleep) -> list[JobReturn]:
    """Wait until no run is in SLURM's queue any more.

    Returns:
        In their order: the newest value of each metric of a completed run; failures as such.
    Raises:
        signals.Stop: a signal ended the waiting; the runs go on.
    """
    from rich.live import Live

    missing: dict[str, int] = {}
    with Live(console=console(), auto_refresh=False, transient=False) as live:
        while True:
            found = [find.StoredRun.read(run.folder.path) for run in runs]
            queue = scheduler.queue()
            find.join_queue(found, queue)
            if sys.stdout.isatty():
                live.update(listing.table(found, time.time()), refresh=True)
            open_runs = [one for run, one in zip(runs, found, strict=True) if _is_open(run, one, queue, missing)]
            if not open_runs:
                break
            if signals.received():
                print(f"{len(open_runs)} runs go on without being waited for.", file=sys.stderr, flush=True)
                raise signals.Stop(signals.received())
            sleep(PAUSE)
        live.update(listing.table(found, time.time()), refresh=True)
    return [_result(run, one) for run, one in zip(runs, found, strict=True)]


def _is_open(run: Run, found: find.StoredRun, queue: Queue, missing: dict[str, int]) -> bool:
    """Whether a run may still change. What its record says is not final while its job is in the queue; and a job that
    a node failed under (NODE_FAIL) may be on its way back to the queue."""
    if found.state == "completed":
        return False
    if queue is None or (run.job_id in queue):
        missing[run.label] = 0
        return True
    missing[run.label] = missing.get(run.label, 0) + 1
    return missing[run.label] < (1 if found.state in ENDED else GONE_LOOKS) or found.state == "running"


def _result(run: Run, found: find.StoredRun) -> JobReturn:
    if found.state == "completed":
        return result(run, JobStatus.COMPLETED, newest_metrics(found))
    reason = (found.attempts[-1].get("reason") if found.attempts else None) or f"see {found.folder.logs}"
    return result(run, JobStatus.FAILED, RuntimeError(f"{found.state}: {reason}"))


def newest_metrics(run: find.StoredRun) -> dict[str, Any]:
    """The newest value of each metric, by name."""
    return {key: value for key, (value, _) in run.metrics.items()}
