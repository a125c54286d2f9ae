"""A hook that makes a run last until something happens to it. It is configured as a tracker, which is not part of a
run's identity."""

import os
import time
from typing import Any

from launcher import BaseHook


class Pacer(BaseHook):
    """Waits `seconds` after each step, but only in the first `starts` starts of a SLURM job."""

    def __init__(self, seconds: float = 0.1, starts: int = 1):
        self.seconds = seconds if int(os.environ.get("SLURM_RESTART_COUNT", 0)) < starts else 0.0

    def on_after_step(self, trainer: Any) -> None:
        if self.seconds:
            time.sleep(self.seconds)
