"""Trials as processes of this machine. When the search ends, they save and end too."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.config.run_config import RunConfig
from launcher.dispatch.pool import Pool

CANCELLED = 256
"""Value in place of an exit code if somebody cancelled the trial during the search."""


class Runner(ABC):
    """Trains trials; `poll` is the number of seconds between two checks of them."""

    poll = 0.3

    def adopt(self, runs: Mapping[int, str]) -> None:  # noqa: B027 - local trials end with it
        """Take over the trials that an earlier search has left running."""

    @abstractmethod
    def start(self, number: int, config: RunConfig) -> None: ...

    def flush(self) -> None:  # noqa: B027 - local trials have started
        """Start the trials that wait for others, to start together."""

    def describe_start(self, step: int) -> str:
        return f"resumes at step {step}" if step else "starts"

    @abstractmethod
    def running(self) -> set[int]: ...

    @abstractmethod
    def reap(self) -> dict[int, int]: ...

    @abstractmethod
    def why(self, number: int, code: int) -> str: ...

    @abstractmethod
    def stop(self, numbers: Sequence[int]) -> None: ...

    @abstractmethod
    def close(self) -> object: ...


class LocalRunner(Pool, Runner):
    """Trains trials as processes on this machine, `slots` at a time, which share the GPUs."""

    def __init__(self, folder: Path, slots: int):
        super().__init__(folder, slots, "trial")
