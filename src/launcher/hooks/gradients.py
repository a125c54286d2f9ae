"""Logs the norms of gradients by block."""

import torch
from torch import nn

from launcher.hooks.base import BaseHook
from launcher.hooks.state import reject_flat_buffers
from launcher.hooks.view import TrainerView
from launcher.strategies.weights import unwrap
from launcher.types import PositiveInt


class GradientsHook(BaseHook):
    """Logs `gradients/<block>`: 2-norms before clipping, over all ranks.

    A block is a numbered part of the model, named up to its first number (`blocks.3`). Other
    parameters belong to their top-level module (`embedding`).

    Args:
        interval: steps between two logged lines.
    """

    changes_numbers = False
    provides = ("gradients/",)

    def __init__(self, interval: PositiveInt = 10):
        self.interval = interval
        self._norms: dict[str, torch.Tensor] = {}

    def on_start(self, trainer: TrainerView) -> None:
        reject_flat_buffers(trainer, "hooks.gradients", "gradients")

    def on_before_optimizer_step(self, trainer: TrainerView) -> None:
        if trainer.step % self.interval and not trainer.is_last_step:
            return
        blocks: dict[str, list[nn.Parameter]] = {}
        for name, p in unwrap(trainer.model).named_parameters():
            if p.requires_grad:
                blocks.setdefault(block_of(name), []).append(p)
        norm = trainer.strategy.grad_norm
        self._norms = {block: norm(params) for block, params in blocks.items()}

    def on_after_step(self, trainer: TrainerView) -> None:
        norms = self._norms
        self._norms = {}
        if norms:
            trainer.log({"gradients": norms})


def block_of(name: str) -> str:
    parts = name.split(".")[:-1] or [name]
    depth = next((i + 1 for i, part in enumerate(parts) if part.isdecimal()), 1)
    return ".".join(parts[:depth])
