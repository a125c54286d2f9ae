"""The order of samples that are stored in blocks: nearby positions are in few blocks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from launcher.data.sampler import Order, permutation, shuffle


class _Epoch(NamedTuple):
    """The blocks of one epoch in order, and the positions after each block and window: int64."""

    number: int
    blocks: np.ndarray
    ends: np.ndarray
    window_ends: np.ndarray

    def window_of(self, offsets: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.window_ends, offsets, side="right")


class BlockOrder(Order):
    """The order of samples in blocks.

    An epoch shuffles the blocks, takes `window` of them at a time, and shuffles the samples of such
    a window. It depends only on (seed, epoch), and any position is computed without earlier ones.
    """

    def __init__(self, sizes: np.ndarray, seed: int, shuffle: bool, window: int):
        self.sizes, self.seed, self.shuffle, self.window = sizes, seed, shuffle, window
        self.starts = np.cumsum(sizes) - sizes
        self.size = int(sizes.sum())
        self._epoch = self._blocks_of(0)

    def _blocks_of(self, number: int) -> _Epoch:
        blocks = np.arange(len(self.sizes), dtype=np.int64)
        if self.shuffle:
            blocks = permutation(len(blocks), self.seed, number)
        ends = np.cumsum(self.sizes[blocks])
        last = np.arange(self.window, len(blocks) + self.window, self.window)
        return _Epoch(number, blocks, ends, ends[np.minimum(last, len(blocks)) - 1])

    def _at(self, epoch: int) -> _Epoch:
        if epoch != self._epoch.number and self.shuffle:
            self._epoch = self._blocks_of(epoch)
        return self._epoch

    def indices(self, start: int, count: int) -> np.ndarray:
        epochs, offsets = np.divmod(np.arange(start, start + count, dtype=np.int64), self.size)
        parts = [self._indices(int(epoch), offsets[epochs == epoch]) for epoch in np.unique(epochs)]
        return np.concatenate(parts)

    def _indices(self, epoch: int, offsets: np.ndarray) -> np.ndarray:
        if not self.shuffle:
            return offsets
        current = self._at(epoch)
        windows, mixed = current.window_of(offsets), offsets.copy()
        for window in np.unique(windows):
            begin = int(current.window_ends[window - 1]) if window else 0
            rows = int(current.window_ends[window]) - begin
            of_window = windows == window
            within = offsets[of_window] - begin
            mixed[of_window] = begin + shuffle(within, rows, self.seed, epoch, int(window))
        slots = np.searchsorted(current.ends, mixed, side="right")
        blocks = current.blocks[slots]
        indices: np.ndarray = self.starts[blocks] + mixed - current.ends[slots] + self.sizes[blocks]
        return indices

    def window_at(self, position: int) -> tuple[int, int]:
        """The epoch and the number of the window of a position."""
        epoch, offset = divmod(position, self.size)
        return epoch, int(self._at(epoch).window_of(np.array([offset]))[0])

    def blocks_of(self, epoch: int, window: int) -> list[int]:
        """Return the blocks of a window; after the last one comes the next epoch's first."""
        current = self._at(epoch)
        if window >= len(current.window_ends):
            current, window = self._blocks_of(epoch + 1), 0
        first = window * self.window
        return [int(block) for block in current.blocks[first : first + self.window]]
