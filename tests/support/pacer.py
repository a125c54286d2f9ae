"""A hook that makes a run last until something happens to it. It is configured as a tracker, which
is not part of a run's identity."""

import os
import time
from typing import Any

from launcher import BaseHook


class Pacer(BaseHook):
    """Waits `seconds` after each step until the run's folder has the file `hurry`, and hangs after
    step `hang_at` (the file `hangs` tells), but only in the first `starts` starts of a SLURM
    job."""

    def __init__(self, seconds: float = 0.1, starts: int = 1, hang_at: int | None = None):
        is_active = int(os.environ.get("SLURM_RESTART_COUNT", 0)) < starts
        self.seconds, self.hang_at = (seconds, hang_at) if is_active else (0.0, None)

    def on_after_step(self, trainer: Any) -> None:
        if trainer.step == self.hang_at:
            (trainer.workspace / "hangs").touch()
            time.sleep(10_000)
        if self.seconds and not (trainer.workspace / "hurry").exists():
            time.sleep(self.seconds)
