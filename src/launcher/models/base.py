"""What a model owes the rest, and what strategies and optimizers ask of it."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Records = dict[str, torch.Tensor | float]


class Model(nn.Module, ABC):
    """A module that gives its own loss.

    The constructor may run on the meta device, where tensors have shapes and no memory. A strategy then allocates
    memory and calls `init_weights()`. It calls it also if the constructor ran on a real device.

    A model with pretrained weights loads them onto a real device, even inside a meta context, and its `init_weights()`
    does not change them.

    A plain `nn.Module` with this `forward` works too, if the whole model fits on a device.
    """

    @abstractmethod
    def forward(self, batch: Any) -> tuple[torch.Tensor, Records]:
        """Loss and records of one micro-batch.

        Args:
            batch: what the data gives, on the model's device; from our data sources a tuple `(input, target)`.
        Returns:
            The loss, 0-d, as a mean over the micro-batch; and named numbers to be logged, 0-d tensors that stay on
            the device: reading one here would make every step wait.
        """

    def num_targets(self, batch: Any) -> torch.Tensor | int | None:
        """How many targets the loss of this batch is a mean over: a number, or a 0-d tensor that stays on the device.

        The step, its micro-batches, the ranks and validation then count by targets. The loss of a batch without targets
        must be 0, not NaN (see `cross_entropy`). None: micro-batches count equally, and validation counts samples.
        """
        return None

    @abstractmethod
    def init_weights(self) -> None:
        """Draw every parameter and fill every buffer, those that no checkpoint has (position tables) included."""

    @abstractmethod
    def shard_units(self) -> list[nn.Module]:
        """The repeated blocks, outermost first: what is sharded, gathered and recomputed as one.

        Their matrices are the model's hidden weights (see `launcher.optim.optimizers.muon`).
        """


IGNORED = -100
"""A target that does not count."""


def count_targets(target: torch.Tensor) -> torch.Tensor:
    return (target != IGNORED).sum()


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The mean over the targets that are not `IGNORED`; 0 if there are none. logits [..., classes], target [...]."""
    total = F.cross_entropy(logits, target, reduction="sum")
    return total / count_targets(target).clamp(min=1)


def accuracy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Share of correct arg-maxes, 0-d float32. logits [..., classes], target [...] int64; `IGNORED` does not count."""
    counted = target != IGNORED
    correct = (logits.detach().argmax(-1) == target) & counted
    return correct.sum() / counted.sum().clamp(min=1)
