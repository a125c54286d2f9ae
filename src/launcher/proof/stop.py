"""The hook that stops a scratch run."""

import os
import signal
from typing import Any

from launcher.hooks.base import BaseHook
from launcher.hooks.view import TrainerView
from launcher.types import PositiveInt


class StopHook(BaseHook):
    """Sends SIGTERM to a training from within, at the same step on every rank.

    Args:
        step: the last step before the stop.
    """

    def __init__(self, step: PositiveInt):
        self.step = step

    def on_batch(self, trainer: TrainerView, batch: Any) -> None:
        if trainer.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)
