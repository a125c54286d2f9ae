"""The order of samples: a global position, counted from training's start, to a dataset's index."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from launcher.config.schema.matters_from import ALL_STEPS, Pair
from launcher.config.tree import Node
from launcher.errors import ConfigError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(*parts: int | np.ndarray) -> np.ndarray:
    """Hash integers or arrays, element by element, to uint64: SplitMix64 chained over the parts.

    Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants of
    its variant 13.
    """
    state = np.zeros(1, dtype=np.uint64)
    for part in parts:
        word = (
            np.asarray(part).astype(np.uint64)
            if isinstance(part, np.ndarray)
            else np.uint64(part & (2**64 - 1))
        )
        state = (state ^ word) + _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state


LARGE = 2**24
"""Number of samples from which on indices are computed one batch at a time. Sorting 10^8 keys takes
15 s and 2 GB."""
ROUNDS = 6


def shuffle(positions: np.ndarray, size: int, *key: int) -> np.ndarray:
    """Return indices, int64, at these positions of a permutation of `size` items by the key.

    A Feistel network permutes the next power of four. Values of `size` or more pass through again.
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = mix(*key, np.arange(ROUNDS))
    values = positions.astype(np.uint64)
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        left, right = values[outside] >> half, values[outside] & mask
        for round_key in keys:
            left, right = right, left ^ (mix(right ^ round_key) & mask)
        values[outside] = left << half | right
        outside = values >= size
    return values.astype(np.int64)


class Order(ABC):
    """An endless order of a dataset's samples; epoch e is positions [e * size, (e + 1) * size)."""

    size: int

    @abstractmethod
    def indices(self, start: int, count: int) -> np.ndarray:
        """Return the dataset indices at positions [start, start + count): int64 [count]."""

    def epochs(self, start: int, count: int) -> np.ndarray:
        """Return the epoch of each of these positions: int64 [count]."""
        return np.arange(start, start + count, dtype=np.int64) // self.size


def permutation(size: int, *key: int) -> np.ndarray:
    """Return a permutation of `size` items by the key: int64 [size].

    It sorts the raw output of PCG64, whose stream numpy never changes, whereas
    `Generator.permutation` may change between versions (NEP 19).
    """
    keys = np.random.PCG64(np.random.SeedSequence(key)).random_raw(size)
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)


class SampleOrder(Order):
    """The order in which each epoch is a permutation that depends only on (seed, epoch).

    A large dataset is permuted by `shuffle`, so that a batch takes the same time and memory at any
    position.
    """

    def __init__(self, size: int, seed: int, shuffle: bool = True):
        if size < 1:
            raise ValueError(f"an order needs at least one sample, got size={size}")
        self.size = size
        self.seed = seed
        self.shuffle = shuffle
        self._epoch = -1
        self._permutation = np.empty(0, dtype=np.int64)

    def permutation(self, epoch: int) -> np.ndarray:
        """Return the indices of one epoch in order: int64 [size]."""
        if epoch != self._epoch:
            self._permutation, self._epoch = permutation(self.size, self.seed, epoch), epoch
        return self._permutation

    def indices(self, start: int, count: int) -> np.ndarray:
        positions = np.arange(start, start + count, dtype=np.int64)
        epochs, offsets = np.divmod(positions, self.size)
        if not self.shuffle:
            return offsets
        parts = []
        for epoch in range(start // self.size, (start + count - 1) // self.size + 1):
            of_epoch = offsets[epochs == epoch]
            parts.append(
                shuffle(of_epoch, self.size, self.seed, epoch)
                if self.size >= LARGE
                else self.permutation(epoch)[of_epoch]
            )
        return np.concatenate(parts)


class SkippingOrder(Order):
    """Another order without the samples of some steps.

    Args:
        order: the order with these samples.
        skip: pairs (first, last). Where this run's step `first` begins, the samples of `last -
            first + 1` steps are passed over.
        batch_size: the samples of a step.
    """

    def __init__(self, order: Order | None, skip: Sequence[Sequence[int]], batch_size: int):
        if not isinstance(order, SampleOrder):
            raise ConfigError(
                f"data.skip={skip}: a mixture or a stream has no samples of a step that could be"
                " passed over; leave it out."
            )
        if not _are_pairs(skip):
            raise ConfigError(
                f"data.skip={skip}: should be pairs of a first and a last step; e.g."
                " data.skip=[[120,125]]."
            )
        self.order, self.size = order, order.size
        self._jumps = [
            ((first - 1) * batch_size, (last - first + 1) * batch_size) for first, last in skip
        ]

    def indices(self, start: int, count: int) -> np.ndarray:
        return self.order.indices(self._moved(start), count)

    def epochs(self, start: int, count: int) -> np.ndarray:
        return self.order.epochs(self._moved(start), count)

    def _moved(self, position: int) -> int:
        # A micro-batch is within a step, so all its samples are moved as its first one.
        return position + sum(samples for start, samples in self._jumps if position >= start)


def _are_pairs(skip: object) -> bool:
    return isinstance(skip, list | tuple) and all(
        isinstance(steps, list | tuple) and len(steps) == 2 and steps[0] <= steps[1]
        for steps in skip
    )


def before_a_skip(one: Node, other: Node, pair: Pair) -> int:
    """Return the steps before the first step at which only one of two runs passes samples over."""
    both = [sorted(map(tuple, node.get("skip") or ())) for node in (one, other)]
    different = [steps for node in (0, 1) for steps in both[node] if steps not in both[1 - node]]
    return min((int(steps[0]) for steps in different), default=ALL_STEPS + 1) - 1
