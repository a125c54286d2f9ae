"""Trials as processes of this machine. When the search ends, they save and end too."""

from collections.abc import Mapping
from pathlib import Path

from launcher.dispatch.pool import Pool

CANCELLED = 256
"""Value in place of an exit code if somebody cancelled the trial during the search."""


class Runner:
    """Trains trials; `poll` is the number of seconds between two checks of them."""

    poll = 0.3

    def adopt(self, runs: Mapping[int, str]) -> None:
        """Take over the trials that an earlier search has left running. Local ones end with it."""

    def flush(self) -> None:
        """Start the trials that wait for others, to start together. Local ones have started."""

    def describe_start(self, step: int) -> str:
        return f"resumes at step {step}" if step else "starts"


class LocalRunner(Pool, Runner):
    """Trains trials as processes on this machine, `slots` at a time, which share the GPUs."""

    def __init__(self, folder: Path, slots: int):
        super().__init__(folder, slots, "trial")
