"""Models that run out of memory, as on a GPU."""

from typing import Any

import torch

from launcher.models.base import Records
from launcher.models.gpt import GPT


class HungryGPT(GPT):
    """Runs out of memory on `rank` (-1: each) for more than `most` samples, or from pass `first`
    on: in its forward pass, or with `backward` in the backward pass."""

    def __init__(
        self,
        most: int = 10**9,
        rank: int = -1,
        first: int = 1,
        backward: bool = False,
        **options: Any,
    ):
        super().__init__(**options)
        self.most, self.rank, self.first, self.backward = most, rank, first, backward
        self.passes = 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, batch: Any) -> tuple[torch.Tensor, Records]:
        loss, records = super().forward(batch)
        self.passes += self.training
        self.seen += len(batch[0])
        own = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        is_too_much = len(batch[0]) > self.most and self.rank in (-1, own)
        if self.training and is_too_much and self.passes >= self.first:
            if not self.backward:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")
            loss.register_hook(_fail)
        return loss, records


def _fail(_: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 5.00 GiB.")
