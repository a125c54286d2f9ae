"""The order of samples is a function of (seed, epoch)."""

import numpy as np
import pytest

from launcher.data.mixture_order import MixtureOrder
from launcher.data.sampler import LARGE, SampleOrder, SkippingOrder, shuffle
from launcher.errors import ConfigError


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


@pytest.mark.parametrize(
    ("skip", "steps"),
    [
        ([[1, 1]], [2, 3, 4, 5, 6, 7, 8, 9]),
        ([[3, 4]], [1, 2, 5, 6, 7, 8, 9, 10]),
        ([[5, 5], [3, 4]], [1, 2, 5, 6, 8, 9, 10, 11]),
        ([[3, 4], [3, 3]], [1, 2, 6, 7, 8, 9, 10, 11]),
        ([[99, 120]], [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_steps_whose_samples_are_passed_over_leave_the_rest_as_it_is(skip, steps):
    """A number of a step is of the run itself, after the earlier jumps."""
    whole, batch = SampleOrder(7, seed=5), 4
    order = SkippingOrder(whole, skip, batch)
    for method in ("indices", "epochs"):
        parts = [getattr(order, method)(at, 2).tolist() for at in range(0, 8 * batch, 2)]
        assert parts == [
            getattr(whole, method)((step - 1) * batch + half, 2).tolist()
            for step in steps
            for half in (0, 2)
        ]


@pytest.mark.parametrize("skip", [[[3, 2]], [[3]], [[1, 2, 3]], 3, [3], "rows"])
def test_a_skip_is_a_pair_of_steps(skip):
    with pytest.raises(ConfigError, match=r"^data\.skip=.*first and a last step; e\.g\. "):
        SkippingOrder(SampleOrder(7, seed=5), skip, 4)


@pytest.mark.parametrize(
    "order", [None, MixtureOrder({"a": 7}, [(0, {"a": 1.0})], "repeat", 0, True)]
)
def test_a_mixture_or_stream_has_no_steps_to_skip(order):
    with pytest.raises(ConfigError, match=r"^data\.skip=.* a mixture or a stream"):
        SkippingOrder(order, [[1, 2]], 4)
