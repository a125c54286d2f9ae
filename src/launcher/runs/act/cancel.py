"""Stop runs: a SLURM job is cancelled, a process on this machine gets SIGTERM.

Each saves first and can be resumed.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser
from launcher.process.users import other_owner
from launcher.rundir.lock_holder import find_local_holder, is_held, signal_holder
from launcher.rundir.record import RunRecord
from launcher.runs.filters import FILTER_HELP, select_some
from launcher.runs.find_runs import find_runs
from launcher.runs.format import join_names
from launcher.runs.slurm_jobs import ask_queue
from launcher.runs.stored_run import CANCELLED_JOB, StoredRun, StoredRuns
from launcher.slurm import scheduler
from launcher.slurm.causes import UnrecordedEnd
from launcher.slurm.job_mark import CANCEL
from launcher.slurm.own_record import END_STATES


def add_arguments(parser: Parser) -> None:
    parser.argument("words", "FILTER", FILTER_HELP, nargs="*")
    parser.flag("--all", "every run that is queued or running")


def warn(run: StoredRun, text: str) -> None:
    print(f"{run.label}: {text}", file=sys.stderr)


def run(arguments: argparse.Namespace) -> int:
    runs, chosen = choose_runs(arguments)
    with_job = [run for run in chosen if run.job is not None and not has_left(run, runs)]
    others = [(run, others_in_job(run, runs, chosen)) for run in with_job]
    in_part = [(run, names) for run, names in others if names]
    in_queue = [run for run, names in others if not names]
    here = [run for run in chosen if run.job is None and find_local_holder(run.folder) is not None]
    left = [
        run
        for run in chosen
        if run.state in ("queued", "running") and run not in with_job and run not in here
    ]
    for run in in_queue:
        note_cancellation(run)
    done = [
        cancel_jobs(in_queue),
        *(reject_part(run, names) for run, names in in_part),
        *map(stop, here),
        *map(reject_running, left),
    ]
    if not with_job and not here and not left:
        print("None of these runs is queued or running.", file=sys.stderr)
    return int(not all(done))


def has_left(run: StoredRun, runs: StoredRuns) -> bool:
    """Return whether a run has ended, and its SLURM job is still of other runs."""
    return run.state in END_STATES and any(
        other is not run and other.job == run.job for other in runs
    )


def others_in_job(run: StoredRun, runs: StoredRuns, chosen: StoredRuns) -> list[str]:
    """Return the runs in the same SLURM job, as of a sweep in it, that are not to be cancelled."""
    return [
        other.label
        for other in runs
        if other.job == run.job and other not in chosen and other.state not in END_STATES
    ]


def note_cancellation(run: StoredRun) -> None:
    """Let the run see that it is cancelled.

    SLURM does not show it of a job that is ending already.
    """
    try:
        CANCEL.write(run.folder, str(run.job_id))
    except OSError as error:
        warn(
            run,
            f"the mark of its cancellation cannot be written ({error.strerror}), without which"
            f" SLURM job {run.job_id} may restart if a preemption is ending it",
        )


def cancel_jobs(runs: StoredRuns) -> bool:
    """Cancel the jobs of runs; return False if one could not be cancelled, or not recorded."""
    jobs = dict.fromkeys(run.job.id for run in runs if run.job is not None)
    try:
        rejected = scheduler.cancel(list(jobs))
    except scheduler.NoAnswer as error:
        withdraw_notes(runs)
        print(f"Not all could be cancelled: {error}", file=sys.stderr)
        return False
    withdraw_notes([run for run in runs if str(run.job_id) in rejected])
    is_recorded = True
    for run in runs:
        message = rejected.get(str(run.job_id))
        if message is not None:
            warn(run, f"SLURM job {run.job_id}: {message}")
            continue
        # A live run records its end itself, after its save. A suspended run cannot do so.
        if run.job is not None and (run.job.state == "SUSPENDED" or not is_held(run.folder)):
            is_recorded &= record_end(run, "cancelled", CANCELLED_JOB, run.job.id)
        print(f"{run.label}: SLURM job {run.job_id} cancelled")
    return is_recorded and not rejected


def withdraw_notes(runs: StoredRuns) -> None:
    for run in runs:
        with suppress(OSError):
            CANCEL.remove(run.folder)


def reject_part(run: StoredRun, others: Sequence[str]) -> bool:
    warn(
        run,
        f"SLURM job {run.job_id} has other runs, which would end too ({join_names(others)}); cancel"
        f" all of them with job={run.job_id}",
    )
    return False


def record_end(run: StoredRun, outcome: UnrecordedEnd, reason: str, job: str | None) -> bool:
    """Record the end of a SLURM job that could not; return False if that failed."""
    try:
        RunRecord(run.folder).revise(outcome, reason=reason, slurm_job_id=job)
    except OSError as error:
        warn(run, f"run.json cannot be written ({error.strerror}): its state stays")
        return False
    return True


def stop(run: StoredRun) -> bool:
    """Send SIGTERM to the process on a run; return False if that failed, and was reported."""
    holder = find_local_holder(run.folder)
    # The process may have just ended.
    if holder is None:
        return True
    try:
        if signal_holder(run.folder, holder, signal.SIGTERM):
            print(f"{run.label}: process {holder.pid} asked to stop")
            return True
        fault = f"does not work on it; remove {run.folder.lock_path}"
    except ProcessLookupError:
        return True
    except PermissionError:
        owner = other_owner(f"/proc/{holder.pid}")
        fault = f"belongs to {owner or 'another user'}"
    warn(run, f"process {holder.pid} {fault}")
    return False


def reject_running(run: StoredRun) -> bool:
    fix = f"is running on {run.node}; stop it there"
    if run.had_job and not run.queue_known:
        fix = "SLURM does not answer; cancel it again later"
    warn(run, fix)
    return False


def choose_runs(arguments: argparse.Namespace) -> tuple[list[StoredRun], list[StoredRun]]:
    """Return all runs, and those that the arguments choose."""
    if not arguments.words and not arguments.all:
        raise ConfigError("which runs? Give a name, the beginning of an id, key=value, or --all.")
    runs = find_runs(arguments.outputs)
    ask_queue(runs)
    return runs, select_some(runs, arguments.words, arguments.outputs)
