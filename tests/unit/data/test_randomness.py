"""Random augmentation is a function of (seed, epoch, sample), and the training's generators see
nothing of it."""

import random

import numpy as np
import pytest
import torch

from launcher.data import EvaluationLoader, ResumableLoader
from launcher.process.rng import seed_host
from support import batches


class Augmented:
    """Sample i with one draw from each global generator."""

    def __len__(self):
        return 7

    def __getitem__(self, index):
        return torch.tensor(
            [index, random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64
        )


def take(count, **options):
    loader = ResumableLoader(
        Augmented(), **({"seed": 3, "micro_batch_size": 2, "seed_samples": True} | options)
    )
    return torch.cat(batches.take(loader, count))


def test_the_same_for_any_workers_ranks_and_starts():
    whole = take(9)
    assert torch.equal(take(9, num_workers=2), whole)
    assert torch.equal(take(4, samples=10, num_workers=2), whole[10:])
    assert torch.equal(take(6, micro_batch_size=3), whole)
    ranks = [
        take(3, micro_batch_size=3, rank=rank, world_size=2).reshape(3, 3, 4) for rank in (0, 1)
    ]
    assert torch.equal(torch.cat(ranks, 1).reshape(-1, 4), whole)


def test_epochs_samples_and_seeds_draw_differently():
    draws = torch.cat([take(7), take(7, seed=4)])[:, 1:]
    for column in draws.T:
        assert len(set(column.tolist())) == 28


@pytest.mark.parametrize("num_workers", [0, 2])
def test_training_generators_are_not_disturbed(num_workers):
    seed_host(1)
    expected = [torch.rand(2).tolist(), random.random(), np.random.rand()]
    seed_host(1)
    take(4, num_workers=num_workers)
    list(EvaluationLoader(Augmented(), 2, num_workers=num_workers, seed_samples=True))
    assert [torch.rand(2).tolist(), random.random(), np.random.rand()] == expected


def test_evaluation_is_always_the_same():
    first, second = (
        torch.cat(list(EvaluationLoader(Augmented(), 3, seed_samples=True))) for _ in range(2)
    )
    workers = torch.cat(list(EvaluationLoader(Augmented(), 2, num_workers=2, seed_samples=True)))
    assert torch.equal(first, second) and torch.equal(first, workers)
