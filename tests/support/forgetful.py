"""Parts with faults that a resume, or a second training, brings to light."""

import time
from typing import Any

import torch
from torch import nn

from launcher import BaseHook


class Warmup(BaseHook):
    """Scales gradients by the number of steps that this process has made; no checkpoint has it."""

    def __init__(self) -> None:
        self.count = 0

    def on_before_optimizer_step(self, trainer: Any) -> None:
        self.count += 1
        for weight in trainer.model.parameters():
            weight.grad.mul_(1 / self.count)


class Counting(nn.Module):
    """Counts its calls in a plain attribute, which is in no state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(2, 2), 0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(input) * (1 + self.calls / 10)


class Numbers:
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([index / 24, 1.0]) + torch.get_num_threads(), index % 2


class Drawn(Numbers):
    """Adds noise of a generator that it does not store."""

    def __init__(self) -> None:
        self.own = torch.Generator().manual_seed(3)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        input, label = super().__getitem__(index)
        return input + torch.rand((), generator=self.own), label


class Clock(Numbers):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        input, label = super().__getitem__(index)
        return input + time.perf_counter_ns() % 1009 / 1009, label
