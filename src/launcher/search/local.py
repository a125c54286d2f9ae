"""Trials as processes of this machine. When the search ends, they save and end too."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from launcher.config.run_config import RunConfig
from launcher.dispatch.pool import Pool

CANCELLED = 256
"""Value in place of an exit code if somebody cancelled the trial during the search."""


class Runner(Protocol):
    """Interface of a runner, which trains trials."""

    @property
    def poll(self) -> float:
        """Seconds between two checks of the trials."""
        ...

    def adopt(self, runs: Mapping[int, str]) -> None: ...
    def start(self, number: int, config: RunConfig) -> None: ...
    def describe_start(self, step: int) -> str: ...
    def flush(self) -> None: ...
    def running(self) -> set[int]: ...
    def ended(self) -> dict[int, int]: ...
    def phase(self, number: int) -> str: ...
    def why(self, number: int, code: int) -> str: ...
    def stop(self, numbers: Sequence[int]) -> None: ...
    def close(self) -> object: ...


class LocalRunner(Pool):
    """Trains trials as processes on this machine, `slots` at a time, which share the GPUs."""

    poll = 0.3

    def __init__(self, folder: Path, slots: int):
        super().__init__(folder, slots, "trial")

    def adopt(self, runs: Mapping[int, str]) -> None:
        """Do nothing, since local trials end with their search."""

    def describe_start(self, step: int) -> str:
        return f"resumes at step {step}" if step else "starts"

    def flush(self) -> None:
        """Do nothing, since `start` has started them."""

    def phase(self, number: int) -> str:
        """State of a running trial."""
        return "running"
