"""The order of samples is a function of (seed, epoch)."""

import numpy as np
import pytest

from launcher.data.sampler import LARGE, SampleOrder, shuffle


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_each_epoch_is_a_permutation(size):
    order = SampleOrder(size, seed=3)
    for epoch in range(4):
        assert sorted(order.indices(epoch * size, size)) == list(range(size))


def test_epochs_and_seeds_differ():
    def first(seed, epoch):
        return SampleOrder(50, seed).permutation(epoch).tolist()

    assert len({tuple(first(seed, epoch)) for seed in (0, 1, 2) for epoch in (0, 1, 2)}) == 9


def test_order_is_fixed_forever():
    """A checkpoint of today must find the same order under another numpy, machine or release."""
    assert SampleOrder(8, seed=0).indices(6, 12).tolist() == [4, 5, 7, 4, 5, 1, 6, 2, 0, 3, 0, 4]


@pytest.mark.parametrize("size", [1, 2, 3, 17, 256, 1000])
def test_a_computed_order_is_a_permutation(size):
    orders = [shuffle(np.arange(size), size, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(size)) for order in orders)
    assert size < 10 or len({tuple(order) for order in orders}) == 4


def test_the_order_of_a_large_dataset_is_computed_where_it_is_needed():
    order = SampleOrder(LARGE, seed=0)
    across = order.indices(2 * LARGE - 3, 6)
    assert across.tolist() == [10580304, 9177972, 4424058, 5714032, 2501673, 11796665]
    assert across[:3].tolist() == order.indices(2 * LARGE - 3, 3).tolist()
    assert across[3:].tolist() == order.indices(2 * LARGE, 3).tolist()
    assert order._permutation.size == 0
    assert SampleOrder(LARGE, 0, shuffle=False).indices(LARGE - 1, 2).tolist() == [LARGE - 1, 0]


@pytest.mark.parametrize("start, count", [(0, 3), (5, 4), (6, 1), (13, 30), (699, 2)])
def test_any_window_is_a_part_of_the_whole(start, count):
    whole = SampleOrder(7, seed=5).indices(0, 800)
    order = SampleOrder(7, seed=5)
    assert order.indices(start, count).tolist() == whole[start : start + count].tolist()
    assert order.epochs(start, count).tolist() == [
        position // 7 for position in range(start, start + count)
    ]
