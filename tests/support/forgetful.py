"""Parts with faults that a resume, or a second training, brings to light."""

from typing import Any

import torch

from launcher import BaseHook


class Warmup(BaseHook):
    """Scales gradients by the number of steps that this process has made; no checkpoint has it."""

    def __init__(self) -> None:
        self.count = 0

    def on_before_optimizer_step(self, trainer: Any) -> None:
        self.count += 1
        for weight in trainer.model.parameters():
            weight.grad.mul_(1 / self.count)


class LastRankCounts(BaseHook):
    """Counts steps on the last rank only."""

    def __init__(self) -> None:
        self.count = 0

    def on_after_step(self, trainer: Any) -> None:
        ranks = trainer.strategy.ranks
        self.count += ranks.rank == ranks.world_size - 1


class Numbers:
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([index / 24, 1.0]) + torch.get_num_threads(), index % 2
