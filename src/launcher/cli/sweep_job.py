"""One job of a sweep: its overrides and its configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.config.run_config import RunConfig


@dataclass
class SweepJob:
    """One job of a sweep."""

    index: int
    overrides: list[str]
    config: RunConfig
    common: frozenset[str] = frozenset()
    """Overrides that all jobs share. A label leaves them out."""
    count: int = 1
    """The number of jobs in the sweep."""
    trunk: "SweepJob | None" = None
    """The job whose run it leaves, with `run.share_prefix`."""
    start: int = 0
    """The last step that it has in common with the trunk."""

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
        return " ".join([f"job {self.index + 1}/{self.count}", self.run, *self.own_overrides])

    @property
    def folder(self) -> Path:
        return self.config.folder.path
