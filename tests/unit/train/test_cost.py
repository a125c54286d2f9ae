"""What the loop does at a step, counted instead of timed: calls of Launcher's own functions.

A change that makes this fail makes each step slower: avoid it, or raise the number here and say why.
"""

import sys
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import launcher
from launcher import BaseTrainer, CheckpointingHook, EvaluationHook, JsonlHook, LoggingHook, ProgressHook

PACKAGE = str(Path(launcher.__file__).parent)
FIRST, LAST = 21, 29
"""Steps at which no interval of 10 is due."""
OF_THE_LOOP, WITH_HOOKS = 28, 30
"""Calls a step."""


class Counted(BaseTrainer):
    """Counts from the batch of a step to that of the next."""

    def build_data_loader(self) -> Any:
        self.calls: list[int] = []
        for step in range(1, 40):
            sys.setprofile(self.count if FIRST <= step < LAST else None)
            self.calls.append(0)
            yield torch.ones(2, 4)

    def count(self, frame: Any, event: str, argument: Any) -> None:
        self.calls[-1] += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    def build_model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def build_hooks(self) -> list[Any]:
        return self.given

    def forward(self, input: Any) -> Any:
        return self.model(input).mean(), {}


def calls(tmp_path: Path, hooks: list[Any]) -> float:
    """Calls in the median step: in some step, what earlier tests left behind may be collected."""
    trainer = Counted(max_steps=35, grad_clip=1.0, device="cpu", workspace=tmp_path)
    trainer.given = hooks
    before = sys.getprofile()
    try:
        trainer.train()
    finally:
        sys.setprofile(before)
    return median(trainer.calls[FIRST - 1 : LAST - 1])


def test_the_loop(tmp_path: Path) -> None:
    assert calls(tmp_path, []) <= OF_THE_LOOP


def test_the_default_hooks(tmp_path: Path) -> None:
    hooks = [
        ProgressHook(interval=10), LoggingHook(interval=10), EvaluationHook(interval=10, at_start=False),
        CheckpointingHook(interval=10, asynchronous=False), JsonlHook(),
    ]  # fmt: skip
    assert calls(tmp_path, hooks) <= WITH_HOOKS
