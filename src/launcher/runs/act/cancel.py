"""Stop runs: a SLURM job is cancelled, a process on this machine gets SIGTERM.

Each saves first and can be resumed.
"""

import argparse
import signal
import sys
from contextlib import suppress

from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser
from launcher.rundir.holder import find_local_holder, is_held, signal_holder
from launcher.rundir.record import RunRecord
from launcher.runs.filters import FILTER_HELP, select_some
from launcher.runs.find_runs import ask_queue, find_runs
from launcher.runs.stored_run import StoredRun, StoredRuns
from launcher.slurm import scheduler
from launcher.slurm.cancel_marker import remove_cancel_note, write_cancel_note
from launcher.slurm.shared_job import others_of


def add_arguments(parser: Parser) -> None:
    parser.argument("words", "FILTER", FILTER_HELP, nargs="*")
    parser.flag("--all", "every run that is queued or running")


def warn(run: StoredRun, text: str) -> None:
    print(f"{run.label}: {text}", file=sys.stderr)


def run(arguments: argparse.Namespace) -> int:
    chosen = choose_runs(arguments)
    with_job = [run for run in chosen if run.job is not None]
    in_part = [run for run in with_job if has_other_runs(run, with_job)]
    in_queue = [run for run in with_job if run not in in_part]
    here = [run for run in chosen if run.job is None and find_local_holder(run.folder) is not None]
    left = [
        run
        for run in chosen
        if run.state in ("queued", "running") and run not in with_job and run not in here
    ]
    unnoted = [run for run in with_job if run.job and not note_cancellation(run, run.job.id)]
    done = [
        cancel_jobs(in_queue),
        *(cancel_part(run, run not in unnoted) for run in in_part),
        *map(stop, here),
        *map(reject_running, left),
    ]
    if not with_job and not here and not left:
        print("None of these runs is queued or running.", file=sys.stderr)
    return int(not all(done))


def has_other_runs(run: StoredRun, chosen: StoredRuns) -> bool:
    """Return whether the run's job has other runs that are not to be cancelled."""
    paths = {other.folder.path.absolute() for other in chosen}
    others = () if run.note is None else others_of(run.folder, run.note)
    return any(other.path not in paths for other in others)


def note_cancellation(run: StoredRun, job: str) -> bool:
    """Let the run see that it is cancelled; return False if its folder cannot be written.

    SLURM does not show it of a job that is ending already.
    """
    try:
        write_cancel_note(run.folder, job)
    except OSError:
        return False
    return True


def cancel_jobs(runs: StoredRuns) -> bool:
    """Cancel the jobs of runs; return False if one could not be cancelled, or not recorded."""
    try:
        rejected = scheduler.cancel([run.job.id for run in runs if run.job is not None])
    except scheduler.NoAnswer as error:
        withdraw_notes(runs)
        print(f"Not all could be cancelled: {error}", file=sys.stderr)
        return False
    withdraw_notes([run for run in runs if str(run.job_id) in rejected])
    is_recorded = True
    for run in runs:
        if (message := rejected.get(str(run.job_id))) is not None:
            warn(run, f"SLURM job {run.job_id}: {message}")
            continue
        # A live run records its end itself, after its save. A suspended run cannot do so.
        if run.job is not None and (run.job.state == "SUSPENDED" or not is_held(run.folder)):
            is_recorded &= record_cancellation(run, run.job.id)
        print(f"{run.label}: SLURM job {run.job_id} cancelled")
    return is_recorded and not rejected


def withdraw_notes(runs: StoredRuns) -> None:
    for run in runs:
        with suppress(OSError):
            remove_cancel_note(run.folder)


def cancel_part(run: StoredRun, is_noted: bool) -> bool:
    """Cancel a run whose job continues with its other runs: the job reads the note."""
    if not is_noted:
        warn(
            run,
            f"its folder cannot be written, so SLURM job {run.job_id}, which has other runs,"
            " continues it; cancel it as the owner of the folder",
        )
        return False
    is_recorded = is_held(run.folder) or record_cancellation(run, run.job_id)
    print(f"{run.label}: cancelled; SLURM job {run.job_id} continues with its other runs")
    return is_recorded


def record_cancellation(run: StoredRun, job: str | None) -> bool:
    """Record the end of a SLURM job that could not; return False if that failed."""
    try:
        RunRecord(run.folder).revise(
            "cancelled", reason="the SLURM job was cancelled", slurm_job_id=job
        )
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
        fault = "belongs to another user"
    warn(run, f"process {holder.pid} {fault}")
    return False


def reject_running(run: StoredRun) -> bool:
    fix = f"is running on {run.node}; stop it there"
    if run.had_job and not run.queue_known:
        fix = "SLURM does not answer; cancel it again later"
    warn(run, fix)
    return False


def choose_runs(arguments: argparse.Namespace) -> list[StoredRun]:
    if not arguments.words and not arguments.all:
        raise ConfigError("which runs? Give a name, the beginning of an id, key=value, or --all.")
    runs = find_runs(arguments.outputs)
    ask_queue(runs)
    return select_some(runs, arguments.words, arguments.outputs)
