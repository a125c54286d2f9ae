"""A model with frozen parameters, and with a buffer that is saved."""

from typing import Any

import torch
from torch import Tensor, nn

from launcher.models.gpt import GPT


class Frozen(GPT):
    """The first block is frozen; the loss is scaled by a learnt number."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.scale = nn.Parameter(torch.empty(1))
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))
        self.blocks[0].requires_grad_(False)

    def init_weights(self) -> None:
        super().init_weights()
        nn.init.ones_(self.scale)
        self.seen.zero_()

    def forward(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Any]]:
        loss, records = super().forward(batch)
        self.seen += self.training
        return loss * self.scale.squeeze(), records
