"""The pace of the runs of `goodput.py`, and a note of each step that was computed."""

import time
from typing import Any

from launcher import BaseHook


class Pace(BaseHook):
    def __init__(self, seconds: float):
        self.seconds = seconds

    def on_after_step(self, trainer: Any) -> None:
        time.sleep(self.seconds)
        with (trainer.workspace / "steps.txt").open("a") as file:
            file.write(f"{trainer.step} {time.time()}\n")
