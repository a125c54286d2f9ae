from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from launcher.hooks.evaluation_mode import in_evaluation
from launcher.models.base import IGNORED, cross_entropy
from launcher.models.chunked_loss import chunk_size, loss_by_chunks
from launcher.models.gpt import GPT

TOKENS, DIM, VOCABULARY = 23, 8, 13


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TOKENS, DIM, generator=generator, dtype=dtype)
    weight = torch.randn(VOCABULARY, DIM, generator=generator, dtype=dtype)
    target = torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)
    target[[0, 5, 6, 7, 8, 9]] = IGNORED
    return x.requires_grad_(), weight.requires_grad_(), target


def autocast(dtype: torch.dtype | None) -> Any:
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def measured(loss: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    of_x, of_weight = torch.autograd.grad(loss * 1000.0, (x, weight))
    return loss.detach(), of_x, of_weight


@pytest.mark.parametrize("size", [1, 5, TOKENS - 1, TOKENS])
@pytest.mark.parametrize(
    ("format", "share"), [(None, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)]
)
def test_equals_the_loss_of_all_logits(size, format, share):
    x, weight, target = inputs()
    with autocast(format):
        expected = measured(cross_entropy(F.linear(x, weight).float(), target), x, weight)
    results = []
    for _ in range(2):
        with autocast(format):
            results.append(measured(loss_by_chunks(x, weight, target, size)[0], x, weight))
    for one, other, whole in zip(*results, expected, strict=True):
        assert torch.equal(one, other) and one.dtype == whole.dtype == torch.float32
        torch.testing.assert_close(one, whole, rtol=share, atol=share * whole.abs().max().item())


def test_a_compiler_sees_no_logits():
    """It may compute those of all chunks before it uses the first."""
    trace = make_fx(lambda *of: loss_by_chunks(*of, 5)[0], tracing_mode="fake")
    values = [node.meta.get("val") for node in trace(*inputs()).graph.nodes]
    shapes = [tuple(value.shape) for value in values if isinstance(value, Tensor)]
    assert shapes.count((VOCABULARY, DIM)) == 2 and (5, VOCABULARY) not in shapes


def test_gradients_equal_differences():
    x, weight, target = inputs(torch.float64)
    assert torch.autograd.gradcheck(lambda *a: loss_by_chunks(*a, target, 4)[0], (x, weight))


def test_gradients_of_16_bit_weights_are_rounded_once():
    x, weight, target = (value.detach() for value in inputs())
    x, weight = (value.bfloat16().requires_grad_() for value in (x, weight))
    exact = [value.detach().double().requires_grad_() for value in (x, weight)]
    _, *expected = measured(cross_entropy(F.linear(*exact), target), *exact)
    _, *actual = measured(loss_by_chunks(x, weight, target, 4)[0], x, weight)
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one.double(), other, rtol=0.02, atol=0.01 * other.abs().max())


def test_targets_that_do_not_count_have_no_gradient():
    x, weight, target = inputs()
    _, of_x, _ = measured(loss_by_chunks(x, weight, target, 4)[0], x, weight)
    assert of_x[target == IGNORED].abs().max() == 0 < of_x[target != IGNORED].abs().min()
    none = loss_by_chunks(x, weight, torch.full_like(target, IGNORED), 4)[0]
    assert all(value.abs().max() == 0 for value in measured(none, x, weight))


def test_small_gradients_survive_fp16():
    """A mean over many tokens divides the gradients, and the loss scale comes afterwards."""
    x, weight = torch.full((4096, 2), 1e-3), torch.ones(50, 2).requires_grad_()
    with autocast(torch.float16):
        loss, _ = loss_by_chunks(x, weight, torch.zeros(4096).long(), 1024)
    (gradient,) = torch.autograd.grad(loss * 2.0**16, weight)
    # Each of the 49 other values has the probability 1/50.
    expected = torch.full((49, 2), 2.0**16 * 1e-3 / 50)
    torch.testing.assert_close(gradient[1:], expected, rtol=1e-2, atol=0)


@pytest.mark.parametrize(
    ("vocabulary", "tokens", "expected"),
    [
        (50304, None, 4096),
        (256, None, 2**20),
        (2**28, None, 1),
        (2**30, None, 1),
        (50304, 100, 100),
        (50304, 0, 0),
    ],
)
def test_an_automatic_chunk_follows_from_the_vocabulary(vocabulary, tokens, expected):
    assert chunk_size(vocabulary, tokens) == expected


# ------------------------------------------------------------------------------------------ in gpt
def gpt(**options: Any) -> GPT:
    model = GPT(31, 16, dim=16, num_layers=1, num_heads=2, **options)
    torch.manual_seed(0)
    model.init_weights()
    return model


def batch() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, 31, (2, 4, 16), generator=torch.Generator().manual_seed(1))
    tokens[1, 0, :9] = IGNORED
    return tokens[0], tokens[1]


@pytest.mark.parametrize("tied", [True, False])
def test_gpt_has_the_gradients_of_the_whole(tied):
    chunked, whole = (gpt(tie_embeddings=tied, logits_chunk=size) for size in (10, 0))
    assert list(chunked.state_dict()) == list(whole.state_dict())
    for model in (chunked, whole):
        loss, records = model(batch())
        assert records == {}
        loss.backward()
    for (name, one), other in zip(chunked.named_parameters(), whole.parameters(), strict=True):
        assert one.grad is not None, name
        torch.testing.assert_close(one.grad, other.grad)


def test_a_small_batch_has_the_bits_of_the_whole():
    assert gpt()(batch())[0].equal(gpt(logits_chunk=0)(batch())[0])


@pytest.mark.parametrize("tied", [True, False])
def test_an_evaluation_has_the_same_numbers_with_and_without_outputs(tied):
    results = {}
    for size in (10, 0):
        model = gpt(tie_embeddings=tied, logits_chunk=size)
        with in_evaluation(model, needs_outputs=False):
            loss, records = model(batch())
        with in_evaluation(model):
            other, outputs = model(batch())
        assert torch.equal(loss, other) and torch.equal(records["accuracy"], outputs["accuracy"])
        assert ("logits" in records) is (size == 0)
        results[size] = loss, outputs["accuracy"], outputs["logits"]
        assert model.training and model.needs_outputs
    for one, whole in zip(*results.values(), strict=True):
        torch.testing.assert_close(one, whole)
