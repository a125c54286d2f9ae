"""Random numbers that depend on (seed, epoch, sample) and on nothing else: not on workers, ranks or what ran before."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from launcher.data.sampler import mix


def sample_seeds(seed: int, epochs: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """One uint64 seed for each sample, from the experiment's seed, the epoch and the sample's index in the dataset."""
    return mix(seed, epochs, indices)


def seed_generators(seed: int) -> None:
    """Seed the global generators a dataset may use: `random`, `numpy.random` and torch's on the CPU.

    `torch.manual_seed` would seed CUDA's too, which belong to the model and cannot be touched in a forked worker.
    """
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


def capture() -> tuple[Any, Any, torch.Tensor]:
    """The state of the three global generators."""
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


def restore(state: tuple[Any, Any, torch.Tensor]) -> None:
    """Put back what `capture` returned."""
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.default_generator.set_state(state[2])


@contextmanager
def isolated() -> Iterator[None]:
    """Whatever is drawn or seeded inside leaves the generators outside as they were."""
    state = capture()
    try:
        yield
    finally:
        restore(state)


class PrivateGenerators:
    """A context that swaps in generator states of its own, and swaps them out again: a stream's own randomness.

    Entered again it goes on where it was left, whatever was drawn outside meanwhile.
    """

    def __init__(self) -> None:
        self._inner: tuple[Any, Any, torch.Tensor] | None = None

    def __enter__(self) -> None:
        self._outer = capture()
        if self._inner is not None:
            restore(self._inner)

    def __exit__(self, *exception: object) -> None:
        self._inner = capture()
        restore(self._outer)
