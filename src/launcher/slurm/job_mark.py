"""Marks in a run's folder: a command has begun to change the state of the run's SLURM job.

A mark is written before SLURM is called. SLURM (22.05) does not show the cancellation of a job that
a preemption is ending already, nor who holds a job.
"""

from dataclasses import dataclass
from functools import partial

from launcher.process.files import patiently, read_file, replace_file
from launcher.rundir.folder import RunFolder


@dataclass(frozen=True)
class JobMark:
    """A file with the id of the job."""

    name: str

    def write(self, folder: RunFolder, job: str) -> None:
        replace_file(folder.path / self.name, job.encode() + b"\n")

    def is_of(self, folder: RunFolder, job: str) -> bool:
        try:
            return patiently(partial(read_file, folder.path / self.name)).decode().strip() == job
        except (OSError, ValueError):
            return False

    def remove(self, folder: RunFolder) -> None:
        (folder.path / self.name).unlink(missing_ok=True)


CANCEL = JobMark(".cancel")
"""`runs cancel` cancels the job."""
HOLD = JobMark(".hold")
"""`runs rollback` holds the job, and releases it at the end."""
