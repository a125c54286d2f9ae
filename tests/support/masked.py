"""Tokens whose targets are masked, in very different numbers: of some samples all."""

from typing import Any

import torch


class Masked(torch.utils.data.Dataset[Any]):
    """Input and target [12] of 19 token values. Of sample i the first i % 5 * 3 targets are
    -100."""

    def __init__(self, size: int = 48):
        self.samples = torch.randint(0, 19, (size, 13), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        target = self.samples[index, 1:].clone()
        target[: index % 5 * 3] = -100
        return self.samples[index, :-1], target
