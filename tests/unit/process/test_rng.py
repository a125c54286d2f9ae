import random
from typing import Any

import numpy as np
import pytest
import torch

from launcher.checkpoint.state_tree import decode, encode
from launcher.process import rng, signals
from launcher.process.rng import (
    call_isolated,
    fresh_rng,
    host_state,
    restore_rng,
    rng_state,
    seed_all,
    seed_host,
    set_deterministic,
)


def draw() -> list[Any]:
    of_numpy = np.random.rand(), np.random.randn()
    return [random.random(), random.gauss(0, 1), *of_numpy, torch.rand(2).tolist()]


def test_equal_seeds_equal_numbers_and_ranks_differ():
    seed_all(3, rank=1)
    first = draw()
    seed_all(3, rank=1)
    assert draw() == first
    others = []
    for seed, rank in ((3, 0), (4, 0), (2, 2)):
        seed_all(seed, rank)
        others.append(draw())
    assert all(a != b for numbers in others for a, b in zip(numbers, first, strict=True))


def test_the_numbers_of_a_seed_are_fixed():
    """A run of today must be the same run under another release."""
    seed_all(2**63 - 1, rank=1)
    drawn = random.getrandbits(32), np.random.get_state()[1][0], torch.initial_seed()
    assert drawn == (1259353107, 1980855000, 3999563611493198024)


@pytest.mark.parametrize("enabled", [False, True])
def test_deterministic_kernels_are_asked_for(monkeypatch, enabled):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    try:
        set_deterministic(enabled)
        assert torch.are_deterministic_algorithms_enabled() is enabled
        assert torch.backends.cudnn.benchmark is not enabled
    finally:
        torch.use_deterministic_algorithms(False)


def test_state_goes_through_a_checkpoint():
    seed_all(0)
    draw()  # leaves half of a pair of normal numbers in numpy's and python's generators
    tensors: dict[str, torch.Tensor] = {}
    saved = encode(rng_state(), tensors)
    expected = draw()
    restore_rng(decode(saved, tensors))
    assert draw() == expected


def test_a_new_rank_starts_alike_at_each_try():
    """Its numbers depend on the seed, the rank and the step, not on what was drawn while it
    started."""
    drawn = []
    others = (5, 2, 11, 0), (5, 3, 10, 0), (6, 2, 10, 0)
    for seed, rank, step, early in ((5, 2, 10, 0), (5, 2, 10, 3), *others):
        seed_all(seed, rank)
        for _ in range(early):
            draw()
        state = fresh_rng(step)
        draw()
        restore_rng(state)
        drawn.append(draw())
    assert drawn[0] == drawn[1]
    assert all(a != b for other in drawn[2:] for a, b in zip(drawn[0], other, strict=True))


def test_an_interrupted_function_leaves_the_generators_as_they_were():
    """The signal that ends the wait for data may come at any point of computing a sample, or of
    restoring."""
    before = host_state()

    def interrupted() -> None:
        seed_host(9)
        raise signals.Interrupted

    with pytest.raises(signals.Interrupted):
        call_isolated(interrupted)
    after = host_state()
    assert after[0] == before[0]
    assert after[1][1].tolist() == before[1][1].tolist()
    assert torch.equal(after[2], before[2])


def test_restoring_may_be_interrupted(monkeypatch):
    before, restore, calls = host_state(), rng.restore_host, []

    def once_interrupted(state: rng.HostState) -> None:
        calls.append(state)
        if len(calls) == 1:
            random.setstate(state[0])
            raise signals.Interrupted
        restore(state)

    monkeypatch.setattr(rng, "restore_host", once_interrupted)
    with pytest.raises(signals.Interrupted):
        call_isolated(lambda: seed_host(9))
    assert torch.equal(host_state()[2], before[2])
