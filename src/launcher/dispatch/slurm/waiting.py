"""`dispatch.wait=true`: a live table, from run.json and squeue, until every run has ended."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from launcher.dispatch.jobs import Job, JobResult
from launcher.dispatch.slurm.task import RESULT
from launcher.process import signals
from launcher.process.text_table import terminal_width
from launcher.rundir.lock_holder import is_held
from launcher.rundir.logs import console
from launcher.runs.look import listing
from launcher.runs.slurm_jobs import ask_ends, join_queue
from launcher.runs.stored_run import StoredRun
from launcher.slurm import scheduler
from launcher.slurm.own_record import END_STATES

if TYPE_CHECKING:
    from rich.text import Text

Queue = dict[str, scheduler.QueuedJob] | None

PAUSE = 2.0
"""Seconds between two calls of squeue."""
GONE_LOOKS = 3
"""Number of calls in a row, since SLURM may leave a job out of its queue for a moment."""
RETRY = 10.0
"""Seconds until SLURM is asked for room again, since each try is a call of sbatch."""


def wait_for(
    runs: Sequence[Job],
    submit_rest: Callable[[], None],
) -> list[JobResult]:
    """Wait until no run is in SLURM's queue or must still be submitted.

    `submit_rest` submits the runs for which SLURM has room by now.

    Returns:
        A result per run, in order: the newest value of each metric of a completed run, else its
        failure.
    """
    from rich.live import Live

    missing: dict[str, int] = {}
    reported = set[str]()
    retry_at = 0.0
    with Live(console=console(), auto_refresh=False, transient=False) as live:
        while True:
            stored = [StoredRun.read(run.folder.path) for run in runs]
            queue = scheduler.queue()
            join_queue(stored, queue)
            if sys.stdout.isatty():
                live.update(_render(stored), refresh=True)
            pairs = list(zip(runs, stored, strict=True))
            advice = {
                f"{run.label}: SLURM job {state.job.id}: {state.job.waits_for}: {state.job.advice}"
                for run, state in pairs
                if state.job is not None and state.job.advice is not None
            }
            for line in sorted(advice - reported):
                print(line, file=sys.stderr, flush=True)
            reported |= advice
            rest = [run for run in runs if run.is_unsubmitted]
            open_runs = [
                run
                for run, state in pairs
                if run.is_unsubmitted or is_open(run.label, state, queue, missing)
            ]
            if not open_runs:
                break
            if signals.first_signal():
                _stop_waiting(len(open_runs) - len(rest), len(rest))
            if rest and queue is not None and time.monotonic() >= retry_at:
                submit_rest()
                retry_at = time.monotonic() + RETRY
            time.sleep(PAUSE)
        ask_ends([state for state in stored if state.had_job])
        live.update(_render(stored), refresh=True)
    return [result_of(run, state) for run, state in pairs]


def _stop_waiting(submitted: int, rest: int) -> NoReturn:
    text = f"{submitted} runs continue; this command no longer waits for them."
    text += f" {rest} were not submitted; the same command submits them." if rest else ""
    print(text, file=sys.stderr, flush=True)
    raise signals.SignalExit(signals.first_signal())


def _render(runs: list[StoredRun]) -> "Text":
    from rich.text import Text

    colored = sys.stdout.isatty()
    lines = listing.table(runs, time.time(), terminal_width()).lines(terminal_width(), colored)
    return Text.from_ansi("\n".join(lines), no_wrap=True)


def is_open(label: str, stored: StoredRun, queue: Queue, missing: dict[str, int]) -> bool:
    """Return whether a run may still change, or a process is on it, which rejects commands.

    A record is not final while its job is in the queue, and a job whose node failed (NODE_FAIL) may
    be about to return there. `missing` counts the checks in a row that did not find each run's job.
    """
    if stored.state == "completed":
        return is_held(stored.folder)
    if queue is None or stored.job is not None:
        missing[label] = 0
        return True
    missing[label] = missing.get(label, 0) + 1
    return (
        missing[label] < (1 if stored.state in END_STATES else GONE_LOOKS)
        or stored.state == "running"
    )


def result_of(run: Job, stored: StoredRun) -> JobResult:
    """Return the metrics of a completed run, else its failure."""
    if stored.state in ("completed", "paused"):
        result_path = stored.folder.path / RESULT
        value = {key: value for key, (value, _) in stored.metrics.items()}
        if result_path.exists():
            value = json.loads(result_path.read_bytes())
        return JobResult(value)
    reason = stored.failure or stored.attempt.get("reason") or f"see {stored.folder.logs}"
    state = "" if stored.state == "failed" else f"{stored.state}: "
    return JobResult(error=ChildProcessError(f"{state}{reason}"))
