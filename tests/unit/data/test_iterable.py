"""A user's IterableDataset: exact order for any number of workers and ranks, exact resume, no
endless loops."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from launcher.data import ResumableLoader
from launcher.errors import ConfigError
from support.batches import take as batches_of


class Stream(IterableDataset):
    """Numbers 0..size, plus 100 for each epoch it is told of."""

    def __init__(self, size):
        self.size = size
        self.epoch = 0
        self.read = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for number in range(self.size):
            self.read += 1
            yield 100 * self.epoch + number


class Sized(Stream):
    def __len__(self):
        return self.size


class Noisy(Stream):
    """Each sample with one draw from each global generator, in the order of the stream."""

    def __iter__(self):
        for number in super().__iter__():
            yield number, random.random(), np.random.rand(), torch.rand(()).item()


def take(dataset, count, samples=0, **options):
    options = {"seed": 0, "micro_batch_size": 2} | options
    batches = batches_of(ResumableLoader(dataset, **options, samples=samples), count)
    return [torch.stack(b, 1).tolist() if isinstance(b, list) else b.tolist() for b in batches]


@pytest.mark.parametrize("kind", [Stream, Sized])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_order_and_epochs(kind, num_workers):
    expected = [[0, 1], [2, 3], [4, 100], [101, 102], [103, 104], [200, 201]]
    assert take(kind(5), 6, num_workers=num_workers) == expected


@pytest.mark.parametrize("kind", [Stream, Sized])
@pytest.mark.parametrize("num_workers, stops", [(0, range(8)), (2, [3])])
def test_resume(kind, num_workers, stops):
    whole = take(kind(5), 8)
    for stop in stops:
        assert take(kind(5), 8 - stop, samples=2 * stop, num_workers=num_workers) == whole[stop:]


def test_a_length_lets_it_jump_over_whole_epochs():
    dataset = Sized(5)
    take(dataset, 1, samples=5_000_002)
    assert dataset.read == 4 and dataset.epoch == 1_000_000


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_share_the_stream(world_size):
    micro = 6 // world_size
    parts = [
        take(Stream(5), 4, micro_batch_size=micro, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    together = [[sample for part in parts for sample in part[i]] for i in range(4)]
    assert together == take(Stream(5), 4, micro_batch_size=6)


def test_randomness_is_the_streams_own():
    """Alike for any number of workers and ranks and after a resume; the training's generators see
    nothing of it."""
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    expected = torch.rand(1), random.random(), np.random.rand()

    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    whole = take(Noisy(5), 6, seed_samples=True)
    assert (torch.rand(1), random.random(), np.random.rand()) == expected

    assert take(Noisy(5), 6, seed_samples=True, num_workers=2) == whole
    assert take(Noisy(5), 3, seed_samples=True, samples=6) == whole[3:]
    parts = [
        take(Noisy(5), 6, seed_samples=True, micro_batch_size=1, rank=r, world_size=2)
        for r in (0, 1)
    ]
    assert [first + second for first, second in zip(*parts, strict=True)] == whole
    assert whole != take(Noisy(5), 6, seed_samples=True, seed=1)


@pytest.mark.parametrize("dataset", [Stream(0), Sized(0)])
def test_an_empty_stream_is_an_error(dataset):
    with pytest.raises(ConfigError, match="epoch 0 gave no sample"):
        take(dataset, 1)


def test_a_stream_that_ends_for_good_is_an_error():
    once = iter([1, 2, 3])

    class Once(IterableDataset):
        def __iter__(self):
            return once

    with pytest.raises(ConfigError, match="epoch 1 gave no sample"):
        take(Once(), 2)


def test_a_wrong_length_is_an_error():
    class Wrong(Stream):
        def __len__(self):
            return 4

    with pytest.raises(ConfigError, match=r"epoch 0 gave 5 samples where len\(\) says 4"):
        take(Wrong(5), 3)
