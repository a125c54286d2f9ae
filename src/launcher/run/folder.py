"""The run folder: where each thing of a run lies. People and scripts use its names: they are an interface."""

import os
from pathlib import Path


class RunFolder:
    """Paths of one run, `outputs/<run.name>/<run.id>/`. Making this object touches nothing.

    ```
    .hydra/                        Hydra's record: config.yaml, overrides.yaml, hydra.yaml
    run.json                       state and attempts (see `launcher.run.record`)
    run.lock                       there while a process is on the run (see `launcher.run.lock`)
    metrics.jsonl                  one line a logged step
    logs/                          launcher.log (rank 0), rank-<r>.log, slurm-<job>.log
    checkpoints/step-00000100/     latest -> step-00000100, best -> ...
    export/                        what job=export writes
    ```
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def hydra(self) -> Path:
        return self.path / ".hydra"

    @property
    def record_path(self) -> Path:
        return self.path / "run.json"

    @property
    def lock_path(self) -> Path:
        return self.path / "run.lock"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def export(self) -> Path:
        return self.path / "export"

    def log_path(self, rank: int = 0) -> Path:
        """The log of one rank; rank 0's is the run's own."""
        return self.logs / ("launcher.log" if rank == 0 else f"rank-{rank}.log")

    def create(self) -> "RunFolder":
        """Make the folder and its `logs`; the others are made by who writes them."""
        self.logs.mkdir(parents=True, exist_ok=True)
        return self
