"""Find all runs on disk, or the run that a word names."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from launcher.config.messages import hint
from launcher.errors import ConfigError
from launcher.process.files import expand
from launcher.rundir.folder import run_folders
from launcher.runs.filters import check_word
from launcher.runs.format import join_names
from launcher.runs.stored_run import StoredRun
from launcher.slurm.scheduler import QueuedJob, find_cancelled, queue
from launcher.slurm.shared_job import END_STATES
from launcher.slurm.submission import FROZEN

RUN_HELP = "an id, the beginning of an id, a name, name/id, a SLURM job, or a folder"


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
            # A run may have ended while other runs of its job have not.
            if run.note.is_shared and run.record.get("state") in END_STATES:
                run.job = None
        run.__dict__.pop("state", None)


def ask_queue(runs: Iterable[StoredRun]) -> None:
    """Call squeue once for all runs, or not at all if no run has a job that could be in the queue.

    If a job has left it without a record of its end, SLURM is queried whether it was cancelled.
    """
    open_runs = [run for run in runs if run.record.get("state") != "completed" and run.had_job]
    if open_runs:
        notes = [run.folder.path / FROZEN for run in open_runs]
        jobs = queue(notes)
        join_queue(open_runs, jobs)
        if jobs is not None:
            ask_cancelled(open_runs)


def ask_cancelled(runs: Iterable[StoredRun]) -> None:
    """Find the runs whose job was cancelled while it waited or was suspended, so left no record."""
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
    for job in find_cancelled(have_started, notes):
        for run in jobs[job]:
            run.was_cancelled = True
            run.__dict__.pop("state", None)


def find_runs(outputs: Path) -> list[StoredRun]:
    """Find all runs below a folder, in the order in which they started."""
    runs = map(StoredRun.read, run_folders(str(outputs)))
    return sorted(runs, key=lambda run: (run.started, run.path))


def find_run(word: str, outputs: Path) -> StoredRun:
    """Find the run that an id, the beginning of an id, a name, name/id, or a folder names."""
    check_word(word)
    folder = expand(word)
    if (folder / "run.json").is_file():
        return StoredRun.read(folder)
    runs = find_runs(outputs)
    matches = (
        [run for run in runs if word in (run.id, run.label)]
        or [run for run in runs if run.name == word]
        or [run for run in runs if run.id.startswith(word)]
        or [run for run in runs if word in (run.job_id, str(run.job_id).partition("_")[0])]
    )
    if len(matches) == 1:
        return matches[0]
    if matches:
        some = join_names([run.label for run in matches])
        raise ConfigError(
            f"'{word}': names {len(matches)} runs, {some}; write name/id, or more of the id."
        )
    if not runs:
        raise ConfigError(
            f"'{word}': there are no runs in {outputs}; give their folder with --outputs=DIR."
        )
    names = {name for run in runs for name in (run.name, run.id, run.label)}
    raise ConfigError(f"'{word}': is not a run in {outputs}{hint(word, names)}")
