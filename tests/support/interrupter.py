"""A hook that sends real signals at an exact moment of a run. It is configured as a tracker, which
is not part of a run's identity."""

import os
import signal
import time
from typing import Any

import torch

from launcher import BaseHook
from launcher.data.digits import load_digits
from launcher.models.mlp import MLP
from launcher.process import signals

HELD_BY = "LAUNCHER_TESTS_HELD_BY"


class Interrupter(BaseHook):
    """Sends `signum` to the whole process group, or to this process alone, when `step` reaches
    `moment`; on each rank, or on one."""

    def __init__(
        self,
        step: int,
        moment: str = "after_step",
        signum: str = "SIGTERM",
        group: bool = True,
        rank: int | None = None,
    ):
        self.step, self.moment, self.group = step, moment, group
        self.signum = signal.Signals[signum]
        if rank not in (None, int(os.environ.get("RANK", "0"))):
            self.step = -1

    def _at(self, trainer: Any, moment: str) -> None:
        if trainer.step != self.step or moment != self.moment:
            return
        self.step = -1
        if self.group:
            os.killpg(os.getpgid(0), self.signum)
        else:
            os.kill(os.getpid(), self.signum)
        time.sleep(0.01)  # so that the handler has run when this returns

    def on_before_train(self, trainer: Any) -> None:
        self._at(trainer, "before_train")

        def on_forward(module: Any, inputs: Any) -> None:
            self._at(trainer, "forward" if module.training else "evaluation")

        if self.moment in ("forward", "evaluation"):
            trainer.model.register_forward_pre_hook(on_forward)
        if self.moment == "backward":
            weight = next(trainer.model.parameters())
            weight.register_hook(lambda grad: self._at(trainer, "backward"))

    def on_before_step(self, trainer: Any) -> None:
        self._at(trainer, "before_step")

    def on_before_optimizer_step(self, trainer: Any) -> None:
        self._at(trainer, "optimizer")

    def on_after_step(self, trainer: Any) -> None:
        self._at(trainer, "after_step")

    def on_step_boundary(self, trainer: Any) -> None:
        self._at(trainer, "boundary")

    def on_after_train(self, trainer: Any) -> None:
        self._at(trainer, "after_train")

    def on_close(self, trainer: Any) -> None:
        self._at(trainer, "close")


class Stalling(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Digits from a source that hangs once, for as long as a file exists."""

    def __init__(self, while_exists: str, at: int):
        self.x, self.y = map(torch.from_numpy, load_digits())
        self.while_exists, self.at = while_exists, at
        self.count = 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.count += 1
        while self.count > self.at and os.path.exists(self.while_exists):
            print("Stalled", flush=True)
            time.sleep(0.2)
        return self.x[index], self.y[index]


class HeldMLP(MLP):
    """Predicts nothing until a signal comes, or the file of the variable HELD_BY is gone."""

    def logits(self, input: torch.Tensor) -> torch.Tensor:
        while os.path.exists(os.environ.get(HELD_BY, "")) and not signals.first_signal():
            time.sleep(0.01)
        return super().logits(input)
