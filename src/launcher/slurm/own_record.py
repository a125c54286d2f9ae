"""The record that a SLURM job may write: its run's, unless the run has a newer job."""

import os

from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from launcher.slurm.sbatch import SCRIPT
from launcher.slurm.submission import Submission

END_STATES = ("completed", "paused", "failed", "cancelled")
"""States of a run that its job does not start again."""


def is_superseded(run: RunFolder) -> bool:
    """Return whether a run has a newer job than this process."""
    script = os.environ.get(SCRIPT)
    note = Submission.read(run)
    # A network file system may fail to read it for a moment.
    return script is not None and note is not None and note.script != script


def own_record(run: RunFolder) -> RunRecord | None:
    """Return a run's record for this job to write, or None if the run has a newer job."""
    return None if is_superseded(run) else RunRecord(run)
