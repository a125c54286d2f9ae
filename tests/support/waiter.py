"""A hook that lets training wait for an evaluation beside it, or kills the process that evaluates.
It is configured as a tracker, which is not part of a run's identity."""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher import BaseHook
from launcher.process import signals

SECONDS = 300


class Waiter(BaseHook):
    """
    Args:
        waits: the step whose result is waited for, by the step after which training waits.
        kill_at: the step after which the evaluating process is killed, once it runs.
    """

    def __init__(self, waits: Mapping[int, int] | None = None, kill_at: int | None = None):
        self.waits, self.kill_at = dict(waits or {}), kill_at

    def on_after_step(self, trainer: Any) -> None:
        if (step := self.waits.get(trainer.step)) is not None:
            file = trainer.workspace / "evaluations" / f"step-{step:08d}.json"
            _until(file.exists)
        if trainer.step == self.kill_at:
            _until(lambda: bool(evaluators(trainer.workspace)))
            for pid in evaluators(trainer.workspace):
                os.kill(pid, signal.SIGKILL)


def evaluators(run: Path) -> list[int]:
    """The processes that evaluate checkpoints of a run."""
    pids = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().decode().split("\0")
        except OSError:
            continue
        if "launcher.jobs.evaluate_beside" in words and str(run) in words:
            pids.append(int(place.parent.name))
    return pids


def _until(holds: Any) -> None:
    end = time.monotonic() + SECONDS
    while not holds() and not signals.received():
        assert time.monotonic() < end
        time.sleep(0.02)
