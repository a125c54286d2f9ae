"""`.cancel` in a run's folder: the SLURM job that `runs cancel` cancels.

It is written before SLURM is called, since SLURM (22.05) does not show the cancellation of a job
that a preemption is ending already.
"""

from launcher.process.files import patiently, replace_file
from launcher.rundir.folder import RunFolder

NAME = ".cancel"


def write_cancel_note(folder: RunFolder, job: str) -> None:
    replace_file(folder.path / NAME, job.encode() + b"\n")


def is_cancel_noted(folder: RunFolder, job: str) -> bool:
    try:
        return patiently((folder.path / NAME).read_text).strip() == job
    except (OSError, ValueError):
        return False


def remove_cancel_note(folder: RunFolder) -> None:
    (folder.path / NAME).unlink(missing_ok=True)
