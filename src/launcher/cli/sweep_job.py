"""One job of a sweep: its overrides and, once it is checked, its configuration."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from launcher.cli.composer import Composer
from launcher.config.lookup import check_identity
from launcher.config.plain import to_plain
from launcher.config.schema import validate_tree


@dataclass
class SweepJob:
    """One job of a sweep."""

    index: int
    overrides: list[str]
    composer: Composer
    common: frozenset[str] = frozenset()
    """Overrides that all jobs share. A label leaves them out."""
    plain: dict[str, Any] = field(default_factory=dict)
    """The resolved configuration, without Hydra's node; empty for an invalid job."""
    hydra: dict[str, Any] = field(default_factory=dict)
    """Hydra's node, interpolations as they are written."""
    count: int = 1
    """The number of jobs in the sweep."""

    @property
    def config(self) -> DictConfig:
        """Compose the configuration at each access: a thousand would not fit in memory."""
        return self.composer.compose(self.overrides, self.index)

    def check(self) -> None:
        """Compose and validate the job."""
        config = self.config
        tree = to_plain(config)
        self.hydra, self.plain = tree["hydra"], validate_tree(config, tree)
        check_identity(self.plain["run"])

    @property
    def run(self) -> str:
        """Return `<run.name>/<run.id>`."""
        return f"{self.plain['run']['name']}/{self.plain['run']['id']}"

    @property
    def own_overrides(self) -> list[str]:
        """The overrides that not all jobs share."""
        return [
            override
            for override in self.overrides
            if override not in self.common and not override.startswith("hydra.")
        ]

    @property
    def label(self) -> str:
        return " ".join([f"job {self.index + 1}/{self.count}", self.run, *self.own_overrides])

    @property
    def folder(self) -> Path:
        return Path(self.plain["run"]["dir"])


def completed(job: SweepJob) -> JobReturn:
    """The result of a job that has completed."""
    result = JobReturn(overrides=job.overrides)
    result.status = JobStatus.COMPLETED
    return result
