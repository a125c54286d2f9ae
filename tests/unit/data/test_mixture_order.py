"""The order of a mixture: a function of (seed, position), each sample once in each epoch of its
source."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.data.mixture_order import BLOCK, MixtureOrder, divide_block

NAMES = "abc"
weight = st.one_of(st.just(0.0), st.floats(0.001, 10.0))


@st.composite
def mixtures(draw: st.DrawFn, policy: str | None = None) -> MixtureOrder:
    names = NAMES[: draw(st.integers(1, 3))]
    sizes = {name: draw(st.integers(1, 60)) for name in names}
    places = [0, *sorted(draw(st.sets(st.integers(1, 300), max_size=3)))]
    schedule = []
    for at in places:
        weights = {name: draw(weight) for name in names}
        weights[draw(st.sampled_from(names))] = 1.0
        schedule.append((at, weights))
    chosen: Any = policy or draw(st.sampled_from(["repeat", "stop", "renormalise"]))
    return MixtureOrder(sizes, schedule, chosen, draw(st.integers(0, 2**32)), draw(st.booleans()))


def again(order: MixtureOrder, schedule: Any = None) -> MixtureOrder:
    sizes = dict(zip(order.names, order.sizes.tolist(), strict=True))
    return MixtureOrder(
        sizes, schedule or order.schedule, order.policy, order.seed, order._orders[0].shuffle
    )


@settings(max_examples=6)
@given(mixtures(), st.integers(0, 400), st.integers(1, 90))
def test_any_part_of_the_order_is_that_of_the_whole(order, start, count):
    if (end := order.end()) is not None:
        start, count = min(start, end - 1), min(count, end - min(start, end - 1))
    whole = order.indices(0, start + count)
    fresh = again(order)
    assert (fresh.indices(start, count) == whole[start:]).all()
    assert (fresh.epochs(start, count) == order.epochs(0, start + count)[start:]).all()
    sources, _ = order.locate(0, start)
    assert (fresh.counts(start) == np.bincount(sources, minlength=len(order.names))).all()


@settings(max_examples=6)
@given(mixtures())
def test_no_sample_is_lost_or_repeated_within_an_epoch_of_its_source(order):
    length = order.end() or 400
    indices, epochs = order.indices(0, length), order.epochs(0, length)
    sources, _ = order.locate(0, length)
    for source, size in enumerate(order.sizes.tolist()):
        own, of_epoch = (
            indices[sources == source] - order.offsets[source],
            epochs[sources == source],
        )
        assert (of_epoch == np.arange(len(own)) // size).all()
        for epoch in range(len(own) // size):
            assert sorted(own[of_epoch == epoch]) == list(range(size))
        rest = own[len(own) // size * size :]
        assert len(set(rest)) == len(rest)


@settings(max_examples=6)
@given(mixtures(policy="renormalise"))
def test_renormalise_uses_no_source_again_before_the_others_are_used_up(order):
    order = again(order, order.schedule[:1])
    weights = np.array([order.schedule[0][1][name] for name in order.names])
    counts = order.counts(0)
    for position in range(1, 200):
        before, counts = counts, order.counts(position)
        source = int(np.argmax(counts - before))
        epoch, place = divmod(int(before[source]), int(order.sizes[source]))
        assert weights[source] > 0
        if place == 0:
            assert (before >= epoch * order.sizes)[weights > 0].all()


@settings(max_examples=6)
@given(mixtures(policy="stop"))
def test_stop_ends_with_the_last_sample_of_a_source(order):
    end = order.end()
    assert end is not None
    assert (order.counts(end) == order.sizes).any() and (order.counts(end) <= order.sizes).all()
    last = [weights for at, weights in order.schedule if at < end][-1]
    assert any(
        last[n] > 0 and c == s
        for n, c, s in zip(order.names, order.counts(end), order.sizes, strict=True)
    )


@settings(max_examples=6)
@given(mixtures(policy="repeat"), st.integers(0, 350), st.lists(weight, min_size=3, max_size=3))
def test_a_fork_has_other_weights_from_its_position_on(order, position, drawn):
    weights = dict(zip(order.names, [1.0, *drawn], strict=False))
    fork = again(order, [(0, weights)])
    fork.load(order.state(position), position)
    assert (fork.indices(0, position) == order.indices(0, position)).all()
    assert (fork.counts(position) == order.counts(position)).all()
    assert fork.schedule[-1][1] == weights
    resumed = again(order, [(0, weights)])
    resumed.load(fork.state(position + 50), position + 50)
    assert (resumed.indices(0, position + 200) == fork.indices(0, position + 200)).all()
    same = again(order)
    same.load(order.state(position), position)
    assert (same.indices(0, 400) == order.indices(0, 400)).all()


@settings(max_examples=30)
@given(st.lists(weight, min_size=1, max_size=6).filter(any))
def test_a_block_is_divided_by_the_weights(weights):
    array = np.array(weights)
    shares = divide_block(array)
    assert shares.sum() == BLOCK and ((shares > 0) == (array > 0)).all()
    assert (np.abs(shares - array / array.sum() * BLOCK) <= len(weights)).all()


def test_another_seed_is_another_order():
    first, second = (
        MixtureOrder({"a": 50, "b": 50}, [(0, {"a": 1.0, "b": 1.0})], "repeat", seed, True)
        for seed in (0, 1)
    )
    assert (first.locate(0, 40)[0] != second.locate(0, 40)[0]).any()
    assert (first.indices(0, 40) != second.indices(0, 40)).any()
