"""The interface of a model: what the trainer, the strategies and the optimizers call."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Records = dict[str, torch.Tensor | float]
TokenBatch = tuple[torch.Tensor, torch.Tensor] | Mapping[str, torch.Tensor]


class Model(nn.Module, ABC):
    """A module that returns its own loss.

    The strategy calls `init_weights()` after the constructor. A model with pretrained weights loads
    them onto a real device, and its `init_weights()` leaves them unchanged.

    A plain `nn.Module` with this `forward` works too, if the whole model fits on one device. No
    other method of it is called, unless its class attribute `launcher_methods` names the method.

    Examples:
        >>> class Regression(Model):
        ...     def __init__(self, width: int = 1):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(width, 1)
        ...
        ...     def init_weights(self):
        ...         torch.nn.init.zeros_(self.layer.weight)
        ...         torch.nn.init.zeros_(self.layer.bias)
        ...
        ...     def shard_units(self):
        ...         return [self.layer]
        ...
        ...     def forward(self, batch):
        ...         input, target = batch
        ...         return torch.nn.functional.mse_loss(self.layer(input), target), {}
        >>> model = Regression()
        >>> model.init_weights()
        >>> loss, records = model((torch.ones(4, 1), torch.ones(4, 1)))
        >>> loss.item()
        1.0
    """

    is_language_model: bool = False
    """True if its loss is in nats per token, so that exp(loss) is the perplexity."""

    needs_outputs: bool = True
    """False in an evaluation that does not use `logits` and `targets`, so a model may leave them
    out."""

    constructor_makes_weights: bool = False
    """True if `init_weights()` keeps weights that the constructor has made, which then needs real
    values, and not the meta device."""

    owns_optimizers: tuple[str, ...] = ()
    """Names of its attributes that are optimizers, and their schedules, if its forward pass steps
    them in training. A plain module may declare them too. It returns a detached loss, or None for a
    step that it skipped."""

    @abstractmethod
    def forward(self, batch: Any) -> tuple[torch.Tensor, Records]:
        """Compute loss and records of one micro-batch.

        Args:
            batch: one micro-batch on the model's device. Launcher's data sources give a tuple
                `(input, target)`.
        Returns:
            The loss, a 0-d tensor, as a mean over the micro-batch, and named numbers to log. They
                are 0-d tensors on the device, since reading one here (`.item()`) would make every
                step wait. In evaluation the records may have `logits` and `targets`, which metrics
                of `hooks.evaluation.metrics` get.
        """

    def num_targets(self, batch: Any) -> torch.Tensor | int | None:
        """Return how many targets the loss of this batch is a mean over (int, or 0-d tensor).

        Micro-batches, ranks and validation batches are then weighted by it. The loss of a batch
        without targets must be 0, not NaN (see `cross_entropy`). With None, micro-batches have
        equal weight, and validation weights by samples.
        """
        return None

    @abstractmethod
    def init_weights(self) -> None:
        """Initialize every parameter and fill every buffer, also those that no checkpoint has."""

    @abstractmethod
    def shard_units(self) -> list[nn.Module]:
        """Return the repeated blocks, outermost first: the units of sharding and recomputing.

        Their matrices are the model's hidden weights (see `launcher.optim.optimizers.muon`).
        """


IGNORED = -100
"""The target value that is left out of losses and metrics."""


def next_tokens(batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (input, target) [B, T]; a mapping's `labels` are shifted by one token."""
    if not isinstance(batch, Mapping):
        return batch
    return batch["input_ids"], F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)


def same_document(batch: TokenBatch) -> torch.Tensor | None:
    """Return the attention mask, bool [B, 1, T, T], for several documents in a row.

    A document starts where `position_ids` is 0. With None, each token sees all earlier ones.
    """
    if not isinstance(batch, Mapping) or "position_ids" not in batch:
        return None
    document = (batch["position_ids"] == 0).cumsum(1)
    return (document[:, None, :, None] == document[:, None, None, :]).tril()


def count_targets(target: torch.Tensor) -> torch.Tensor:
    return (target != IGNORED).sum()


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Compute the mean over targets [...] that are not `IGNORED`, or 0; logits [..., classes]."""
    total = F.cross_entropy(logits.flatten(0, -2), target.flatten(), reduction="sum")
    return total / count_targets(target).clamp(min=1)


def outputs(model: nn.Module, logits: torch.Tensor, targets: torch.Tensor) -> Records:
    """Return the records for evaluation metrics, which are empty in training."""
    return {} if model.training else {"logits": logits, "targets": targets}


def class_records(model: nn.Module, logits: torch.Tensor, targets: torch.Tensor) -> Records:
    """Return the records of classes: logits [..., classes], targets [...]."""
    return {"accuracy": accuracy(logits, targets)} | outputs(model, logits, targets)


def binary_records(model: nn.Module, logits: torch.Tensor, targets: torch.Tensor) -> Records:
    """Return the records of yes or no: logits and targets of one shape."""
    is_true = targets > 0.5
    correct = ((logits.detach() > 0) == is_true).float()
    return {"accuracy": correct.mean()} | outputs(model, logits, is_true.long())


def accuracy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Compute the share of targets [...] that equal the arg-max of logits [..., classes]."""
    counted = target != IGNORED
    correct = (logits.detach().argmax(-1) == target) & counted
    return correct.sum() / counted.sum().clamp(min=1)
