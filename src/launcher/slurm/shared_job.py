"""A SLURM job with several runs (`dispatch.runs_per_job`).

It has a folder next to its script, `<script's name>/<array task>/`, with `runs.txt`, a run's folder
per line, `restarts.json` (see `launcher.slurm.journal`) and the job's own log. A job with one run
has no folder of its own: all that it writes is in the run's.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.slurm.sbatch import SCRIPT
from launcher.slurm.submission import Submission

RUNS = "runs.txt"
END_STATES = ("completed", "paused", "failed", "cancelled")
"""States of a run that its job does not start again."""


def job_folder(script: Path, task: int | None = None) -> Path:
    return script.with_suffix("") / str(task or 0)


def write_runs(folder: Path, runs: Iterable[RunFolder]) -> None:
    (folder / "logs").mkdir(parents=True)
    (folder / RUNS).write_text("".join(f"{os.path.abspath(run)}\n" for run in runs))


def runs_of(folder: RunFolder) -> list[RunFolder]:
    """Return the runs in the `runs.txt` of a job's folder, or the run whose folder it is."""
    try:
        lines = (folder.path / RUNS).read_text().splitlines()
    except OSError:
        return [folder]
    return [RunFolder(line) for line in lines]


def others_of(run: RunFolder, note: Submission) -> Iterator[RunFolder]:
    """Return the other runs of a run's job that have not ended."""
    if not note.is_shared:
        return
    for other in runs_of(RunFolder(job_folder(Path(note.script), note.task))):
        if other.path != run.path.absolute() and is_open(other, note.script):
            yield other


def is_open(run: RunFolder, script: str | None) -> bool:
    """Return whether a run has not ended, and has no newer job than the script's."""
    return state_in(run, script) not in (None, *END_STATES)


def is_superseded(run: RunFolder, script: str | None) -> bool:
    note = Submission.read(run)
    # A network file system may fail to read it for a moment.
    return script is not None and note is not None and note.script != script


def own_record(run: RunFolder) -> RunRecord | None:
    """Return a run's record for this job to write, or None if the run has a newer job."""
    return None if is_superseded(run, os.environ.get(SCRIPT)) else RunRecord(run)


def state_in(run: RunFolder, script: str | None) -> str | None:
    """Return the state of a run, or None if it has a newer job than the script's."""
    if is_superseded(run, script):
        return None
    return str(RunOnDisk.read(run).record.get("state", "damaged"))
