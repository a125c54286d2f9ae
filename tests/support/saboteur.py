"""Failures of one rank in the middle of a run: a hook and a model."""

import os
import signal
import sys
import time
from typing import Any

from launcher import BaseHook
from launcher.jobs.train import TrainJob
from launcher.models.gpt import GPT
from launcher.process.ranks import on_main, store
from launcher.strategies.none import NoStrategy


class Saboteur(BaseHook):
    """Raises, exits, ends the process, is killed, or hangs on `rank`, before the update of
    `step`."""

    def __init__(self, rank: int, step: int, act: str):
        self.rank, self.step, self.act = rank, step, act

    def on_before_optimizer_step(self, trainer: Any) -> None:
        if trainer.step != self.step or trainer.strategy.ranks.rank != self.rank:
            return
        print("a word of native code", flush=True)
        if self.act == "raise":
            raise LookupError("lost in the middle")
        if self.act == "exit":
            raise SystemExit(0)
        if self.act == "_exit":
            os._exit(0)
        if self.act == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(3600)


class Exits(BaseHook):
    """Calls `sys.exit` in the user's code: in a constructor, in a forward pass, or in a method of a
    hook."""

    def __init__(self, where: str, code: Any):
        self.where, self.code = where, code
        if where == "constructor":
            sys.exit(code)
        if where.startswith("on_"):
            setattr(self, where, self.exit)

    def on_start(self, trainer: Any) -> None:
        if self.where == "forward":
            trainer.model.register_forward_pre_hook(self.exit)

    def exit(self, *args: Any, **kwargs: Any) -> None:
        sys.exit(self.code)


class ExitingSamples:
    """Exits in a dataset's method, in a worker where there is one."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        sys.exit(0)


class Late(TrainJob):
    """Has rank 1 read a decision of rank 0 late, and fail soon if rank 0 is gone."""

    def run(self, config: Any) -> Any:
        if os.environ["RANK"] == "1":
            time.sleep(2)
            store(timeout=20)
        return {"decided": on_main(lambda: 1)}


class Silent(GPT):
    """Returns no loss in its third call, on the last rank."""

    calls = 0

    def forward(self, batch: Any) -> Any:
        self.calls += 1
        loss, records = super().forward(batch)
        return (None if self.calls == 3 and os.environ["RANK"] == "1" else loss), records


class OneProcess(NoStrategy):
    """Rejects a second rank only once it is started."""
