"""Ask SLURM about the jobs of runs, and set what it answers."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from launcher.runs.stored_run import StoredRun
from launcher.slurm.scheduler import QueuedJob, find_ends, queue
from launcher.slurm.submission import FROZEN


def join_queue(runs: Iterable[StoredRun], jobs: Mapping[str, QueuedJob] | None) -> None:
    """Set each run's job in SLURM's queue, or None if it is not known (see `scheduler.queue`)."""
    if jobs is None:
        return
    for run in runs:
        run.queue_known = True
        run.job = jobs.get(run.last_job_id or "")
        if run.note is not None:
            # A job of this id with another script belongs to another cluster, or ids were reset.
            is_known = run.note.script and run.note.job_id == run.last_job_id
            run.job = run.note.find_in(jobs) or (None if is_known else run.job)
        run.__dict__.pop("state", None)


def ask_queue(runs: Iterable[StoredRun]) -> None:
    """Call squeue once for all runs, or not at all if no run has a job that could be in the queue.

    If a job has left it without a record of its end, SLURM is queried how it has ended.
    """
    open_runs = [run for run in runs if run.record.get("state") != "completed" and run.had_job]
    if open_runs:
        notes = [run.folder.path / FROZEN for run in open_runs]
        jobs = queue(notes)
        join_queue(open_runs, jobs)
        if jobs is not None:
            ask_ends(open_runs)


def ask_ends(runs: Iterable[StoredRun]) -> None:
    """Set how a job has ended that could not record it: it waited, was suspended or was killed."""
    # A job may have several runs.
    jobs = defaultdict[tuple[str, str], list[StoredRun]](list)
    for run in runs:
        is_lost = run.job is None and run.state in ("stale", "preempted")
        if is_lost and (lost := run.open_job_id) is not None:
            note = run.note
            script = note.script if note is not None and note.job_id == lost else ""
            jobs[lost, script].append(run)
    if not jobs:
        return
    have_started = {
        (job, script): any((run.folder.logs / f"slurm-{job}.log").exists() for run in of_job)
        for (job, script), of_job in jobs.items()
    }
    notes = [run.folder.path / FROZEN for of_job in jobs.values() for run in of_job]
    for job, state in find_ends(have_started, notes).items():
        for run in jobs[job]:
            run.slurm_end = state
            run.__dict__.pop("state", None)
