"""A compiled loss over chunks of tokens is the loss of all logits."""

import torch
from torch.nn import functional as F

from launcher.models.base import IGNORED, cross_entropy
from launcher.models.chunked_loss import loss_by_chunks
from support import python


def compare() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, 8, generator=generator).requires_grad_() for size in (23, 13))
    target = torch.randint(0, 13, (23,), generator=generator)
    target[[0, 5, 6, 7, 8, 9]] = IGNORED
    compiled = torch.compile(loss_by_chunks, backend="aot_eager", fullgraph=True)
    losses = [cross_entropy(F.linear(x, weight), target)]
    losses += [compiled(x, weight, target, 5)[0] for _ in range(2)]
    expected, *results = [
        (loss.detach(), *torch.autograd.grad(loss * 1000.0, (x, weight))) for loss in losses
    ]
    for one, other, whole in zip(*results, expected, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, whole, rtol=1e-6, atol=1e-6 * whole.abs().max().item())


def test_a_compiled_loss_equals_the_loss_of_all_logits():
    """The compiler, which starts processes, has a process of its own."""
    python.run(__file__, check=True)


if __name__ == "__main__":
    compare()
