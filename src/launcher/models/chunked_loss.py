"""An output layer over a vocabulary, whose loss needs the logits of a few tokens at a time.

The logits of all tokens and their gradients are the peak of a small model's memory. Here the
gradients are computed chunk by chunk in the forward pass, and the backward pass only scales them
(Hsu et al. 2024, arXiv:2410.10989, section 3.2).
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from launcher.models.base import IGNORED, Records, count_targets

MAX_LOGITS = 2**28
"""Logits of an automatic chunk, at most; they are 1 GiB in float32."""


def chunk_size(vocab_size: int, tokens: int | None) -> int:
    """Return the tokens of a chunk: `tokens`, or if it is None, as many as `MAX_LOGITS` allows.

    The number is then a power of two, since batches are mostly multiples of one.
    """
    if tokens is not None:
        return tokens
    return 1 << max(MAX_LOGITS // vocab_size, 1).bit_length() - 1


class OutputLayer(nn.Linear):
    """Scores of each token value, or their loss. It is called, so that weights are gathered."""

    def __init__(self, dim: int, vocab_size: int):
        super().__init__(dim, vocab_size, bias=False)

    def forward(self, input: Tensor, target: Tensor | None = None, size: int = 0) -> Any:
        """Compute logits of inputs [..., dim], or with targets what `loss_by_chunks` returns."""
        if target is None:
            return F.linear(input, self.weight)
        return loss_by_chunks(input, self.weight, target, size, with_accuracy=not self.training)


def loss_by_chunks(
    x: Tensor, weight: Tensor, target: Tensor, size: int, with_accuracy: bool = False
) -> tuple[Tensor, Records]:
    """Compute `cross_entropy(F.linear(x, weight).float(), target)`, which it equals to rounding.

    Args:
        x: [N, dim], the output layer's input.
        weight: [vocab_size, dim].
        target: [N] int64. Targets of `IGNORED` do not count.
        size: tokens of a chunk.
        with_accuracy: also return the record `accuracy`.
    """
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    count = count_targets(target).clamp(min=1)
    records: Records = {}
    total: Tensor | None = None
    if torch.is_grad_enabled():
        total = _SummedLoss.apply(x, weight, target, size, dtype)  # type: ignore[no-untyped-call]
    if with_accuracy or total is None:
        summed, correct = _sums(x.detach(), weight.detach(), target, size, dtype)
        total = summed if total is None else total
        records = {"accuracy": correct / count} if with_accuracy else {}
    return total / count, records


def _sums(
    x: Tensor, weight: Tensor, target: Tensor, size: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses, and how many targets have the largest score."""
    weight = weight.to(dtype)
    losses, correct = [], []
    for rows, targets in zip(x.split(size), target.split(size), strict=True):
        logits, _, loss = _scores(rows.to(dtype), weight, targets)
        losses.append(loss)
        correct.append((logits.argmax(-1) == targets).sum())
    return torch.stack(losses).sum(), torch.stack(correct).sum()


def _scores(rows: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits [N, vocab_size], log(sum(exp(logits))) [N, 1], and the summed loss."""
    logits = F.linear(rows, weight)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    normalizer = logits.logsumexp(1, keepdim=True)
    losses = normalizer - logits.gather(1, target.clamp(min=0)[:, None])
    return logits, normalizer, losses.masked_fill((target == IGNORED)[:, None], 0.0).sum()


class _SummedLoss(torch.autograd.Function):
    """The sum of the losses, whose gradients are computed in the forward pass.

    They are gradients of the sum: gradients of a mean over many tokens would underflow in fp16,
    whose loss scale is known only in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, target: Tensor, size: int, dtype: torch.dtype
    ) -> Tensor:
        compiled = torch.compiler.is_compiling()
        loss: Tensor
        loss, of_x, of_weight = _loss_and_gradients(x, weight, target, size, dtype, compiled)
        ctx.save_for_backward(of_x, of_weight)
        ctx.weight_dtype = weight.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        of_x, of_weight = ctx.saved_tensors
        return of_x * slope, (of_weight * slope).to(ctx.weight_dtype), None, None, None


@torch.library.custom_op("launcher::loss_and_gradients", mutates_args=())
def _loss_and_gradients(
    x: Tensor, weight: Tensor, target: Tensor, size: int, dtype: torch.dtype, compiled: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the summed loss, and its gradients by x and by the weight.

    It is an operator, into which a compiler does not look: in a graph of all chunks, inductor may
    compute the logits of each before it uses the first. So only a chunk's own work is compiled.
    """
    compute, size = _compiled_chunk() if compiled else _chunk, min(size, len(x))
    matrix, gradient = weight.to(dtype), torch.empty_like(x)
    of_weight = torch.zeros_like(weight, dtype=torch.promote_types(dtype, torch.float32))
    losses = []
    with torch.no_grad():
        for part, targets, of_x in zip(
            x.split(size), target.split(size), gradient.split(size), strict=True
        ):
            # A compiler would compile a shorter last chunk, and then all, for any number of tokens,
            # with other rounding than before.
            missing = size - len(part) if compiled else 0
            rows = F.pad(part.to(dtype), (0, 0, 0, missing))
            loss, slope = compute(rows, matrix, F.pad(targets, (0, missing), value=IGNORED))
            losses.append(loss)
            of_x.copy_(slope[: len(part)] @ matrix)
            of_weight.add_(slope.t() @ rows)
    return torch.stack(losses).sum(), gradient, of_weight


@_loss_and_gradients.register_fake
def _(
    x: Tensor, weight: Tensor, target: Tensor, size: int, dtype: torch.dtype, compiled: bool
) -> tuple[Tensor, Tensor, Tensor]:
    of_weight = torch.empty_like(weight, dtype=torch.promote_types(dtype, torch.float32))
    return of_weight.new_empty(()), torch.empty_like(x), of_weight


def _chunk(rows: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed loss of a chunk, and its gradients by the logits, [N, vocab_size]."""
    logits, normalizer, loss = _scores(rows, weight, target)
    slope = logits.sub_(normalizer).exp_()
    # A compiler fuses a comparison with the rest, but not writes to single elements.
    if torch.compiler.is_compiling():
        tokens = torch.arange(weight.shape[0], device=rows.device)
        slope.add_(tokens == target[:, None], alpha=-1)
    else:
        slope[torch.arange(len(target), device=rows.device), target.clamp(min=0)] -= 1
    return loss, slope.masked_fill_((target == IGNORED)[:, None], 0.0).to(rows.dtype)


@cache
def _compiled_chunk() -> Callable[..., tuple[Tensor, Tensor]]:
    # Torch imports its compiler here, which takes over a second.
    return torch.compile(_chunk, dynamic=False)
