"""The runs of one submission, and their report and results."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.dispatch.due import JOBS, folder_of
from launcher.rundir.files import expanded
from launcher.slurm.scheduler import QueuedJob
from launcher.slurm.submission import JobNote, NotAnswered

SHOWN = 20
"""Maximum number of listed submitted runs."""


@dataclass
class SubmittedRun:
    """One run of a submission, with its configuration and Hydra's node."""

    label: str
    config: Mapping[str, Any]
    hydra: Mapping[str, Any] | None
    skipped: str | None = None
    job_id: str | None = None
    limit: str | None = None
    """Limit of SLURM that keeps it from being submitted now."""
    trunk: "SubmittedRun | None" = None
    """The run that it leaves, with `run.share_prefix`, and until whose end its job waits."""

    def __post_init__(self) -> None:
        self.folder = folder_of(self.config)

    @property
    def depth(self) -> int:
        return 0 if self.trunk is None else 1 + self.trunk.depth

    def dependency(self, queue: Mapping[str, QueuedJob]) -> str | None:
        """Return the dependency on the trunk's job, unless that has ended."""
        if self.trunk is None:
            return None
        note = None if self.trunk.job_id else JobNote.read(self.trunk.folder)
        queued = None if note is None else note.find_in(queue)
        job = self.trunk.job_id if queued is None else queued.id
        return None if job is None else f"afterany:{job}"

    @property
    def outputs(self) -> Path:
        return expanded(self.config["paths"]["outputs"]).absolute()


def report(runs: Sequence[SubmittedRun], due: Sequence[SubmittedRun], waits: bool = False) -> None:
    """Print the job of each run, or why it has none.

    Args:
        runs: all runs of the command.
        due: the runs that were to be submitted.
        waits: the command submits the other runs once there is room.
    """
    rest = [run for run in due if run.limit is not None]
    due = [run for run in due if run.limit is None]
    for run in runs[:SHOWN]:
        what = run.skipped or (
            f"SLURM job {run.job_id}" if run.limit is None else "not submitted yet"
        )
        print(f"{run.label}: {what}, {run.folder.path}", flush=True)
    if len(runs) > SHOWN:
        print(f"... and {len(runs) - SHOWN} more")
    jobs = sorted({str(run.job_id).partition("_")[0] for run in due}, key=int)
    jobs_text = f" as SLURM job{'s' if len(jobs) > 1 else ''} {', '.join(jobs)}" if jobs else ""
    if JOBS in runs[0].folder.path.parts:
        how = (
            f"To follow it: python -m launcher.runs logs -f {shlex.quote(str(runs[0].folder.path))}"
        )
    else:
        how = f"To list them: python -m launcher.runs --outputs {shlex.quote(str(runs[0].outputs))}"
    skipped = len(runs) - len(due) - len(rest)
    print(f"{len(due)} submitted{jobs_text}, {skipped} skipped. {how}", flush=True)
    if rest:
        is_silent = rest[0].limit == NotAnswered.limit
        why = "does not answer" if is_silent else f"has no room ({rest[0].limit})"
        then = "repeat the command when other jobs have ended"
        if waits:
            then = "are submitted later" if is_silent else "are submitted as other jobs end"
        print(f"{len(rest)} not submitted yet, since SLURM {why}; {then}.", flush=True)
