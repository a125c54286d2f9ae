"""`.cancel` in a run's folder: the SLURM job that `runs cancel` cancels.

It is written before SLURM is called. Of a job that a preemption is ending already, SLURM (22.05)
does not show a cancellation.
"""

from launcher.rundir.files import patiently, replace_file
from launcher.rundir.folder import RunFolder

NAME = ".cancel"


def write_cancel_note(folder: RunFolder, job: str) -> None:
    """Write the note.

    Raises:
        OSError: the folder cannot be written.
    """
    replace_file(folder.path / NAME, job.encode() + b"\n")


def is_cancel_noted(folder: RunFolder, job: str) -> bool:
    """Return whether this job of the run was cancelled. A note about another job has no effect."""
    try:
        return patiently((folder.path / NAME).read_text).strip() == job
    except (OSError, ValueError):
        return False


def remove_cancel_note(folder: RunFolder) -> None:
    """Remove the note.

    Raises:
        OSError: the folder cannot be written.
    """
    (folder.path / NAME).unlink(missing_ok=True)
