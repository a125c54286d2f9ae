"""Random numbers that depend on (seed, epoch, sample) and on nothing else: not on workers, ranks or what ran before."""

import random
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from launcher.data.sampler import mix

T = TypeVar("T")
State = tuple[Any, Any, torch.Tensor]
"""Of the generators of python, numpy and torch."""


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


def capture() -> State:
    """The state of the three global generators."""
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


def restore(state: State) -> None:
    """Put back what `capture` returned."""
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.default_generator.set_state(state[2])


def isolated(function: Callable[[], T]) -> T:
    """`function()`; whatever it draws or seeds leaves the generators outside as they were.

    A signal may end a wait for data with an exception at any instruction (`run.signals.waiting`), once: hence no
    context manager, whose own code it could hit, and the second `restore`.
    """
    outside = capture()
    try:
        return function()
    finally:
        try:
            restore(outside)
        except BaseException:
            restore(outside)
            raise


class PrivateGenerators:
    """Generator states of a stream's own, which go on from one `run` to the next whatever is drawn outside."""

    def __init__(self) -> None:
        self._own: State | None = None

    def run(self, function: Callable[[], T]) -> T:
        """`function()` with these generators; those outside stay as they were."""

        def inside() -> T:
            result = self._begin(function)
            self._own = capture()
            return result

        return isolated(inside)

    def peek(self, function: Callable[[], T]) -> T:
        """As `run`, but these generators do not move on either."""
        return isolated(lambda: self._begin(function))

    def _begin(self, function: Callable[[], T]) -> T:
        if self._own is not None:
            restore(self._own)
        return function()
