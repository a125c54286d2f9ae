"""A job to start, here or on a cluster, and its result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from launcher.config.run_config import RunConfig
from launcher.dispatch.skip_reasons import folder_of
from launcher.process.files import expand
from launcher.rundir.folder import RunFolder
from launcher.slurm.scheduler import QueuedJob
from launcher.slurm.submission import Submission


@dataclass(eq=False)
class Job:
    """A job of a command: one of a sweep, a trial of a search, or the only one."""

    config: RunConfig
    index: int = 0
    overrides: list[str] = field(default_factory=list)
    common: frozenset[str] = frozenset()
    """Overrides that all jobs share. A label leaves them out."""
    count: int = 0
    """The number of jobs in the sweep, or 0."""
    trunk: "Job | None" = None
    """The job whose run it leaves, with `run.share_prefix`."""
    start: int = 0
    """The last step that it has in common with the trunk."""
    skipped: str | None = None
    """Why it is not submitted."""
    job_id: str | None = None

    @property
    def plain(self) -> dict[str, Any]:
        return self.config.plain

    @property
    def run(self) -> str:
        """Return `<run.name>/<run.id>`."""
        return self.config.name

    @property
    def own_overrides(self) -> list[str]:
        """The overrides that not all jobs share."""
        return [override for override in self.overrides if override not in self.common]

    @property
    def label(self) -> str:
        number = [f"job {self.index + 1}/{self.count}"] if self.count else []
        return " ".join([*number, self.run, *self.own_overrides])

    @cached_property
    def folder(self) -> RunFolder:
        """The folder of its record: of its run, or its own if it does not train."""
        return folder_of(self.config)

    @property
    def outputs(self) -> Path:
        return expand(self.plain["paths"]["outputs"]).absolute()

    @property
    def is_unsubmitted(self) -> bool:
        """It is to be submitted, and SLURM does not have it yet."""
        return self.skipped is None and self.job_id is None

    @property
    def depth(self) -> int:
        return 0 if self.trunk is None else 1 + self.trunk.depth

    def dependency(self, queue: Mapping[str, QueuedJob]) -> str | None:
        """Return the dependency on the trunk's job, unless that has ended."""
        if self.trunk is None:
            return None
        note = None if self.trunk.job_id else Submission.read(self.trunk.folder)
        queued = None if note is None else note.find_in(queue)
        job = self.trunk.job_id if queued is None else queued.id
        return None if job is None else f"afterany:{job}"


@dataclass(frozen=True)
class JobResult:
    """The value that a job has returned, or its error."""

    value: object = None
    error: BaseException | None = None
