"""Losses of `model=supervised` that a configuration chooses by name."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from launcher.models.base import IGNORED, count_targets

Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps predictions and targets to a 0-d mean."""
CLASS_LOSSES = ("cross_entropy", "focal")
"""Losses of class scores [..., classes] and targets [...] int64."""


def elementwise(name: str, huber_delta: float) -> Loss:
    """Return the loss of this name, a mean over all elements of two tensors of one shape."""
    functions: dict[str, Loss] = {
        "bce": F.binary_cross_entropy_with_logits,
        "mse": F.mse_loss,
        "l1": F.l1_loss,
        "huber": lambda output, target: F.huber_loss(output, target, delta=huber_delta),
    }
    return functions[name]


def class_loss(
    logits: Tensor,
    target: Tensor,
    weights: Tensor | None = None,
    label_smoothing: float = 0.0,
    gamma: float = 0.0,
) -> Tensor:
    """Compute the mean loss over the targets that are not `IGNORED`, or 0 if there are none.

    The mean divides by the number of targets, not by the sum of their weights. So each target
    counts the same however a batch is divided into micro-batches and ranks. The focal loss is
    `(1 - p)^gamma * -log(p)`, where p is the probability of the target.

    Args:
        logits: [N, classes].
        target: [N] int64.
        weights: [classes], factors of the targets' losses by their class.
        label_smoothing: share of each target that is spread over all classes.
        gamma: exponent of the focal loss, which cannot be combined with `label_smoothing`.
    """
    count = count_targets(target).clamp(min=1)
    if not gamma:
        total = F.cross_entropy(
            logits, target, weights, reduction="sum", label_smoothing=label_smoothing
        )
        return total / count
    losses = F.cross_entropy(logits, target, reduction="none")
    # The gradient of x^gamma at 0 is infinite for gamma < 1.
    missed = (-torch.expm1(-losses)).clamp(min=torch.finfo(losses.dtype).tiny)
    losses = missed**gamma * losses
    if weights is not None:
        losses = losses * weights[target.clamp(min=0)]
    return losses.masked_fill(target == IGNORED, 0.0).sum() / count
