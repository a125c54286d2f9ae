"""Submit arrays: write their run folders, and call sbatch once for each array."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from launcher.dispatch.submitted_runs import SubmittedRun
from launcher.rundir.record_format import iso
from launcher.slurm import scheduler, submission
from launcher.slurm.sbatch import Script
from launcher.slurm.submission import JobNote

WRITERS = 8
"""Threads that write run folders."""


def most_tasks(runs: Sequence[SubmittedRun]) -> int:
    """The maximum number of runs of an array. Its highest index must be below MaxArraySize."""
    if len(runs) == 1:
        return 1
    return max(1, int(scheduler.config_values("MaxArraySize").get("MaxArraySize", 1001)) - 1)


def submit(
    script: Script,
    runs: list[SubmittedRun],
    path: Path,
    is_array: bool,
    parallelism: int | None,
    code: Path | None,
) -> str:
    """Submit the runs as one array, or one run as a plain job, and note the job's id.

    If SLURM rejects it, the run folders are restored.

    Args:
        script: what the job's script contains.
        runs: the runs.
        path: where the job's script is written.
        is_array: make an array, even of one run.
        parallelism: at most this many of the runs at once.
        code: the folder of a snapshot.
    Returns:
        The job's id.
    Raises:
        ConfigError: SLURM does not have the job.
    """
    folders = [run.folder for run in runs]
    text = script.text(path, len(runs) if is_array else None, parallelism)
    now = iso(time.time())
    notes = [JobNote(str(path), index if is_array else None, now) for index in range(len(runs))]
    with submission.undone_on_failure(folders):
        submission.write_script(path, text, folders)
        _in_threads(partial(_freeze, code), runs, notes)
        job = submission.hand_over(path)
    for run, note in zip(runs, notes, strict=True):
        run.job_id = job if note.task is None else f"{job}_{note.task}"
    return job


def _freeze(code: Path | None, run: SubmittedRun, note: JobNote) -> None:
    with run.folder.being_written():
        submission.freeze(run.folder, run.config, run.hydra, note, code)


def _in_threads(write: Callable[..., object], *arguments: Sequence[object]) -> None:
    """Call `write` for each run, in threads, since each call waits for a shared file system."""
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, *arguments))
