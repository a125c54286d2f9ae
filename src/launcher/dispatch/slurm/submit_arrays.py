"""Submit arrays: write their run folders, and call sbatch once for each array."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from launcher.dispatch.jobs import Job
from launcher.slurm import scheduler, shared_job, submission
from launcher.slurm.sbatch import Script, job_folder
from launcher.slurm.submission import Submission

WRITERS = 8
"""Threads that write run folders."""


def most_tasks(num_jobs: int) -> int:
    """Return the maximum number of tasks of an array; its highest index is below MaxArraySize."""
    if num_jobs == 1:
        return 1
    return max(1, int(scheduler.config_value("MaxArraySize") or 1001) - 1)


def submit(
    script: Script,
    runs: list[Job],
    path: Path,
    is_array: bool,
    parallelism: int | None,
    code: Path | None,
) -> str:
    """Submit the runs as one array or plain job, and return its id, or restore their folders.

    `path` gets the script, `parallelism` is the maximum number of jobs at once, and `code` is the
    folder of a snapshot.
    """
    folders = [run.folder for run in runs]
    size = script.runs_per_job
    jobs = [folders[start : start + size] for start in range(0, len(folders), size)]
    text = script.text(path, len(jobs) if is_array else None, parallelism)
    notes = []
    for index, job in enumerate(jobs):
        note = Submission(str(path), index if is_array else None)
        note.runs = len(job) if len(job) > 1 else None
        notes += [note] * len(job)
    with submission.undone_on_failure(folders):
        submission.write_script(path, text, folders)
        if size > 1:
            for index, job in enumerate(jobs):
                shared_job.write_runs(job_folder(path, index), job)
        # In threads, since each write waits for a shared file system.
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(partial(_freeze, code), runs, notes))
        job_id = submission.hand_over(path)
    for run, note in zip(runs, notes, strict=True):
        run.job_id = job_id if note.task is None else f"{job_id}_{note.task}"
    return job_id


def _freeze(code: Path | None, run: Job, note: Submission) -> None:
    with run.folder.explain_write_errors():
        submission.freeze(run.folder, run.config.stored, run.config.hydra, note, code)
