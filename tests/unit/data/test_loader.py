"""Exact order, exact resume, for any number of ranks and workers; evaluation sees each sample once;
random augmentation is a function of (seed, epoch, sample)."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

from launcher.data import EvaluationLoader, ResumableLoader, SampleOrder
from launcher.errors import ConfigError
from launcher.process.rng import get_generator_state, host_state, seed_host
from support.batches import take

SIZE = 11


class Numbers:
    """Sample i is the number i."""

    def __init__(self, size=SIZE):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index


class Batches(Numbers):
    """The same, a batch at once."""

    def get_batch(self, indices):
        return torch.from_numpy(indices.copy())


class Lists(Numbers):
    """The same, all samples of a batch at once."""

    def __getitems__(self, indices):
        return list(indices)

    def __getitem__(self, index):
        raise AssertionError("__getitems__ is there to be used")


class Augmented(Numbers):
    """Sample i with one draw from each global generator."""

    def __getitem__(self, index):
        draws = random.random(), np.random.rand(), torch.rand(()).item()
        return torch.tensor([index, *draws], dtype=torch.float64)


class Stream(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


def numbers(loader, count):
    return [batch.tolist() for batch in take(loader, count)]


def flat(batches):
    return [sample for batch in batches for sample in batch]


def augmented(**options):
    options = {"seed": 1, "micro_batch_size": 3, "seed_samples": True} | options
    return ResumableLoader(Augmented(), **options)


@pytest.fixture(scope="module")
def whole():
    """The samples of one process."""
    return flat(numbers(augmented(), 50))


@pytest.mark.parametrize(
    ("dataset", "num_workers"), [(Numbers, 0), (Batches, 0), (Lists, 0), (Batches, 2)]
)
def test_order(dataset, num_workers):
    loader = ResumableLoader(dataset(), seed=4, micro_batch_size=3, num_workers=num_workers)
    assert flat(numbers(loader, 9)) == SampleOrder(SIZE, seed=4).indices(0, 27).tolist()
    assert loader.samples == 27


@settings(max_examples=40)
@given(
    ranks=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    micros=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stop=st.integers(0, 8),
)
def test_ranks_share_out_the_samples_before_and_after_a_resume(whole, ranks, micros, stop):
    taken, state = [], None
    for world_size, micro, count in zip(ranks, micros, (stop, 4), strict=True):
        options = {"micro_batch_size": micro, "world_size": world_size}
        loaders = [augmented(rank=rank, **options) for rank in range(world_size)]
        for loader in loaders if state else ():
            loader.load_state_dict(state)
        parts = [numbers(loader, count) for loader in loaders]
        taken += [sample for of_ranks in zip(*parts, strict=True) for sample in flat(of_ranks)]
        (state, *others) = [loader.state_dict() for loader in loaders]
        assert state["samples"] == len(taken) and all(other == state for other in others)
    assert taken == whole[: len(taken)]


def test_workers_resume_with_the_next_sample():
    options = {"rank": 1, "world_size": 3}
    first, second = (augmented(num_workers=2, **options) for _ in range(2))
    before = numbers(first, 2) + numbers(first, 2)
    second.load_state_dict(first.state_dict())
    assert before + numbers(second, 5) == numbers(augmented(**options), 9)


def test_epochs_samples_and_seeds_draw_differently(whole):
    draws = np.array([*whole[: 2 * SIZE], *flat(numbers(augmented(seed=4), 7))])[:, 1:]
    assert all(len({*column}) == len(draws) for column in draws.T.tolist())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_training_generators_are_not_disturbed(num_workers):
    seed_host(1)
    expected = [torch.rand(2).tolist(), random.random(), np.random.rand()]
    seed_host(1)
    take(augmented(num_workers=num_workers), 4)
    list(EvaluationLoader(Augmented(), 2, num_workers=num_workers, seed_samples=True))
    assert [torch.rand(2).tolist(), random.random(), np.random.rand()] == expected


def test_augmentation_of_an_evaluation_is_always_the_same():
    first, second, workers = (
        torch.cat(list(EvaluationLoader(Augmented(), size, num_workers=count, seed_samples=True)))
        for size, count in ((3, 0), (3, 0), (2, 2))
    )
    assert torch.equal(first, second) and torch.equal(first, workers)


def test_other_data_are_rejected():
    state = ResumableLoader(Numbers(11), seed=0, micro_batch_size=2).state_dict()
    with pytest.raises(ConfigError, match=r"were '11 samples' .* are '12 samples' now"):
        ResumableLoader(Numbers(12), seed=0, micro_batch_size=2).load_state_dict(state)


@pytest.mark.parametrize("state", [{"samples": 4}, {"samples": 4, "dataset": None}])
def test_data_of_which_nothing_was_stored_are_not_compared(state):
    """A stream without a length has no fingerprint."""
    loader = ResumableLoader(Numbers(), seed=0, micro_batch_size=2)
    loader.load_state_dict(state)
    assert loader.samples == 4
    stream = ResumableLoader(iter([1]), seed=0, micro_batch_size=2)
    stream.load_state_dict(loader.state_dict())
    assert stream.samples == 4


def test_an_empty_dataset_is_an_error():
    with pytest.raises(ConfigError, match=r"the training set .* is empty"):
        ResumableLoader(Numbers(0), seed=0, micro_batch_size=1)
    with pytest.raises(ConfigError, match=r"the validation set .* is empty"):
        EvaluationLoader(Numbers(0), 1)


@pytest.mark.parametrize("kind", [Batches, Stream])
@settings(max_examples=25)
@given(
    size=st.integers(1, 40),
    limit=st.one_of(st.none(), st.integers(1, 40)),
    world_size=st.integers(1, 4),
    batch_size=st.integers(1, 9),
)
def test_evaluation_sees_each_sample_once_in_the_batches_of_one_rank(
    kind, size, limit, world_size, batch_size
):
    def batches(rank, world_size):
        loader = EvaluationLoader(kind(size), batch_size, rank, world_size, max_samples=limit)
        taken = [batch.tolist() for batch in loader]
        assert kind is Stream or len(loader) == len(taken)
        assert loader.first_batch().tolist() == list(range(size))[:limit][:batch_size]
        return taken

    whole = batches(0, 1)
    assert flat(whole) == list(range(size))[:limit]
    for rank in range(world_size):
        assert batches(rank, world_size) == whole[rank::world_size]


@pytest.mark.parametrize("kind", [Batches, Stream])
def test_workers_evaluate_the_same_samples(kind):
    loader = EvaluationLoader(kind(11), 4, 0, 2, num_workers=2)
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [8, 9, 10]]


def test_positions_beyond_32_bits():
    loader = ResumableLoader(Numbers(), seed=0, micro_batch_size=3, samples=SIZE * 10**12)
    assert flat(numbers(loader, 1)) == SampleOrder(SIZE, 0).permutation(10**12)[:3].tolist()
    assert type(loader.state_dict()["samples"]) is int


DRAWS = {
    "python": lambda: random.sample(range(6), 6),
    "numpy": lambda: np.random.permutation(6).tolist(),
    "torch": lambda: torch.randperm(6).tolist(),
}


class DrawnOrder:
    """Its order is drawn from a global generator for each epoch."""

    def __init__(self, name: str):
        self.draw = DRAWS[name]
        self.order = list(range(6))

    def set_epoch(self, epoch: int) -> None:
        self.order = self.draw()

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return self.order[index]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("name", DRAWS)
def test_what_set_epoch_draws_follows_from_the_seed_and_the_epoch(name, num_workers):
    def read(samples: int, count: int, workers: int) -> list[int]:
        seed_host(samples)
        loader = ResumableLoader(
            DrawnOrder(name), seed=4, micro_batch_size=2, samples=samples, seed_samples=True,
            shuffle=False, num_workers=workers,
        )  # fmt: skip
        before = host_state()
        batches = take(loader, count)
        assert str(host_state()) == str(before)
        return torch.cat(batches).tolist()

    whole = read(0, 6, 0)
    assert sorted(whole[:6]) == list(range(6)) and whole[:6] != whole[6:]
    assert read(8, 2, num_workers) == whole[8:]


def draw(generator: Any) -> float:
    if isinstance(generator, torch.Generator):
        return float(torch.rand((), generator=generator))
    return float(generator.random())


class World:
    def __init__(self, rng: Any):
        self.rng = rng


class Drawn:
    """Samples of a generator of its own, which is the attribute of a part of it."""

    def __init__(self, generator: Any):
        self.world = World(generator)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> float:
        return draw(self.world.rng)


class DrawnStream(Drawn, IterableDataset[float]):
    def __iter__(self) -> Iterator[float]:
        return (draw(self.world.rng) for _ in range(6))


GENERATORS = [random.Random, np.random.default_rng, np.random.RandomState, torch.Generator]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", [Drawn, DrawnStream])
@pytest.mark.parametrize("make", GENERATORS)
def test_each_pass_draws_the_same_from_a_generator_of_the_dataset(make, kind, num_workers):
    """Else a resume, and another number of workers, would evaluate on other samples."""
    dataset = kind(make() if make is torch.Generator else make(3))
    loader = EvaluationLoader(dataset, 4, num_workers=num_workers)
    draw(dataset.world.rng)
    before = get_generator_state(dataset.world.rng)
    passes = [torch.cat(list(loader)).tolist() for _ in range(3)]
    whole = EvaluationLoader(kind(make() if make is torch.Generator else make(3)), 6)
    assert passes == [next(iter(whole)).tolist()] * 3
    assert str(get_generator_state(dataset.world.rng)) == str(before)
