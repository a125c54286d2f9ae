"""Failures of one rank in the middle of a run: a hook and a model."""

import os
import signal
import time
from typing import Any

from launcher import BaseHook
from launcher.models.gpt import GPT


class Saboteur(BaseHook):
    """On `rank`, before the update of `step`: raise, exit, be killed, or hang."""

    def __init__(self, rank: int, step: int, act: str):
        self.rank, self.step, self.act = rank, step, act

    def on_before_optimizer_step(self, trainer: Any) -> None:
        if trainer.step != self.step or trainer.strategy.ranks.rank != self.rank:
            return
        print("a word of native code", flush=True)
        if self.act == "raise":
            raise LookupError("lost in the middle")
        if self.act == "exit":
            raise SystemExit(7)
        if self.act == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(3600)


class Silent(GPT):
    """Returns no loss in its third call, on the last rank."""

    calls = 0

    def forward(self, batch: Any) -> Any:
        self.calls += 1
        loss, records = super().forward(batch)
        return (None if self.calls == 3 and os.environ["RANK"] == "1" else loss), records
