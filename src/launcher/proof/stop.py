"""The hook that stops a scratch run."""

import os
import signal
import time
from typing import Any

from launcher.errors import TrainingError
from launcher.hooks.base import BaseHook, TrainerView
from launcher.rundir.folder import RunFolder, step_name
from launcher.types import PositiveInt

WAIT = 600.0
"""Seconds within which a checkpoint must be durable before the kill."""


class StopHook(BaseHook):
    """Stops a training from within, at the same step on every rank.

    Args:
        step: the last step before the stop.
        kill: stop with SIGKILL, in the step after it, once its checkpoint is saved. Otherwise stop
            with SIGTERM.
    """

    def __init__(self, step: PositiveInt, kill: bool):
        self.step, self.kill = step, kill

    def on_batch(self, trainer: TrainerView, batch: Any) -> None:
        if not self.kill and trainer.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)
        elif self.kill and trainer.step == self.step + 1:
            assert trainer.workspace is not None
            saved = RunFolder(trainer.workspace).checkpoints / step_name(self.step)
            end = time.monotonic() + WAIT
            while not saved.is_dir():
                if time.monotonic() > end:
                    raise TrainingError(f"{saved} was not saved within {WAIT:.0f} seconds.")
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
