"""The order of samples: from a global position, counted since the start of training, to an index of the dataset."""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(*parts: int | np.ndarray) -> np.ndarray:
    """Hash integers (or arrays of them, element by element) to uint64: SplitMix64, chained over the parts.

    Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants of its variant 13.
    """
    state = np.zeros(1, dtype=np.uint64)
    for part in parts:
        word = np.asarray(part).astype(np.uint64) if isinstance(part, np.ndarray) else np.uint64(part & (2**64 - 1))
        state = (state ^ word) + _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state


class SampleOrder:
    """The endless order of a dataset's samples; epoch e is positions [e * size, (e + 1) * size).

    Each epoch is a permutation that is a function of (seed, epoch) alone. It sorts PCG64's raw output, whose stream
    numpy keeps forever, where `Generator.permutation` may change between versions (NEP 19).
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
        """The indices of one epoch in their order: int64 [size]. The last one asked for is kept."""
        if not self.shuffle:
            epoch = 0
        if epoch != self._epoch:
            self._permutation = self._draw(epoch)
            self._epoch = epoch
        return self._permutation

    def _draw(self, epoch: int) -> np.ndarray:
        if not self.shuffle:
            return np.arange(self.size, dtype=np.int64)
        keys = np.random.PCG64(np.random.SeedSequence([self.seed, epoch])).random_raw(self.size)
        return np.argsort(keys, kind="stable").astype(np.int64, copy=False)

    def indices(self, start: int, count: int) -> np.ndarray:
        """The dataset indices at positions [start, start + count): int64 [count]. May span any number of epochs."""
        epoch, offset = divmod(start, self.size)
        if offset + count <= self.size:
            return self.permutation(epoch)[offset : offset + count]
        parts = []
        while count > 0:
            parts.append(self.permutation(epoch)[offset : offset + count])
            count -= len(parts[-1])
            epoch, offset = epoch + 1, 0
        return np.concatenate(parts)

    def epochs(self, start: int, count: int) -> np.ndarray:
        """The epoch of each of these positions: int64 [count]."""
        return np.arange(start, start + count, dtype=np.int64) // self.size
