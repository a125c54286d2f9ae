"""The order of samples of a mixture: the source of each position, and the sample of this source.

Positions are divided into segments in which the weights stay the same, and these into blocks. In
each block every source has its share of the samples, in an order that depends only on (seed,
segment, block). So the source of a position, and the number of samples of each source before it,
are known without computing all earlier positions.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from zlib import crc32

import numpy as np

from launcher.data.sampler import Order, SampleOrder, mix, permutation

BLOCK = 2**14
"""Samples of a block. The resolution of a weight is 1/16384 of their sum."""
Policy = Literal["repeat", "stop", "renormalise"]
Weights = dict[str, float]


@dataclass(frozen=True)
class MixtureSegment:
    """Positions [start, end) with the same shares, without an end if it is None."""

    start: int
    counts: np.ndarray
    """Samples of each source before `start`: int64 [sources]."""
    shares: np.ndarray
    """Samples of each source in a block: int64 [sources]."""
    end: int | None


class MixtureOrder(Order):
    """Indices into the sources laid one after the other, at any position.

    Args:
        sizes: the number of samples of each source.
        schedule: the weights, each with its first position. The first one is 0.
        policy: what happens when a source has no more samples. "repeat" begins its next epoch.
            "renormalise" leaves it out until all others have none either, then all begin their next
            epoch. "stop" ends the training.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        schedule: Sequence[tuple[int, Weights]],
        policy: Policy,
        seed: int,
        shuffle: bool,
    ):
        self.names, self.sizes = list(sizes), np.array(list(sizes.values()), dtype=np.int64)
        self.size = int(self.sizes.sum())
        self.policy = policy
        self.seed = seed
        self.schedule = [(int(at), dict(weights)) for at, weights in schedule]
        self._configured = self.schedule
        self.offsets = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        self._orders = [
            SampleOrder(size, int(mix(seed, crc32(name.encode()))[0]), shuffle)
            for name, size in sizes.items()
        ]
        self._block: tuple[tuple[int, int], np.ndarray, np.ndarray] | None = None
        self._begin()

    def _begin(self) -> None:
        self._segments: list[MixtureSegment] = []
        self._limits = self.sizes.copy()
        self._append(0, np.zeros(len(self.names), dtype=np.int64))

    def locate(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the source of each position, and the source's samples before it: int64 [count]."""
        sources = np.empty(count, dtype=np.int64)
        numbers = np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            position = start + done
            segment = self._segment(position)
            block, offset = divmod(position - segment.start, BLOCK)
            labels, ranks = self._labels(segment, block)
            stop = min(count - done, BLOCK - offset)
            if segment.end is not None:
                stop = min(stop, segment.end - position)
            part = slice(offset, offset + stop)
            into = slice(done, done + stop)
            sources[into] = labels[part]
            numbers[into] = (segment.counts + block * segment.shares)[labels[part]] + ranks[part]
            done += stop
        return sources, numbers

    def indices(self, start: int, count: int) -> np.ndarray:
        sources, numbers = self.locate(start, count)
        indices = np.empty(count, dtype=np.int64)
        for source in np.unique(sources).tolist():
            chosen = np.flatnonzero(sources == source)
            # Within a batch the numbers of a source follow each other.
            indices_in_source = self._orders[source].indices(int(numbers[chosen[0]]), len(chosen))
            indices[chosen] = indices_in_source + self.offsets[source]
        return indices

    def epochs(self, start: int, count: int) -> np.ndarray:
        """Return the epoch of each position's own source: int64 [count]."""
        sources, numbers = self.locate(start, count)
        epochs: np.ndarray = numbers // self.sizes[sources]
        return epochs

    def counts(self, position: int) -> np.ndarray:
        """Return the number of samples of each source before a position: int64 [sources]."""
        return self._counts(self._segment(position), position)

    def end(self) -> int | None:
        """Return where the first source is used up, if that stops the training."""
        if self.policy != "stop":
            return None
        while (last := self._segments[-1]).end is not None:
            counts = self._counts(last, last.end)
            if (counts >= self._limits)[last.shares > 0].any():
                return last.end
            self._append(last.end, counts)
        return None

    def state(self, position: int) -> list[list[Any]]:
        return [[at, weights] for at, weights in self.schedule if at < position or at == 0]

    def load(self, past: Sequence[Sequence[Any]], position: int) -> None:
        """Continue at a position that was reached under other weights, as a fork may."""
        schedule = [(int(at), dict(weights)) for at, weights in past if at < position]
        now = [weights for at, weights in self._configured if at <= position][-1]
        if not schedule or now != schedule[-1][1]:
            schedule.append((position, now))
        self.schedule = [*schedule, *(stage for stage in self._configured if stage[0] > position)]
        self._begin()

    def _segment(self, position: int) -> MixtureSegment:
        while (last := self._segments[-1]).end is not None and position >= last.end:
            self._append(last.end, self._counts(last, last.end))
        return self._segments[
            bisect_right(self._segments, position, key=lambda segment: segment.start) - 1
        ]

    def _append(self, start: int, counts: np.ndarray) -> None:
        weights = [weights for at, weights in self.schedule if at <= start][-1]
        wanted = np.array([float(weights[name]) for name in self.names])
        if self.policy == "renormalise":
            is_left = counts < self._limits
            if not (wanted[is_left] > 0).any():
                self._limits = self._limits + self.sizes * (~is_left & (wanted > 0))
                is_left = counts < self._limits
            wanted = np.where(is_left, wanted, 0.0)
        shares = divide_block(wanted)
        segment = MixtureSegment(start, counts, shares, None)
        ends = [at for at, _ in self.schedule if at > start][:1]
        if self.policy != "repeat":
            ends += self._find_exhaustion(segment)
        self._segments.append(MixtureSegment(start, counts, shares, min(ends, default=None)))

    def _find_exhaustion(self, segment: MixtureSegment) -> Iterator[int]:
        """Yield the position after each source's last sample, if the segment is that long."""
        for source in np.flatnonzero(segment.shares).tolist():
            left = int(self._limits[source] - segment.counts[source])
            # A stopped training is not continued.
            if left <= 0:
                continue
            block, number = divmod(left - 1, int(segment.shares[source]))
            labels, _ = self._labels(segment, block)
            yield segment.start + block * BLOCK + int(np.flatnonzero(labels == source)[number]) + 1

    def _counts(self, segment: MixtureSegment, position: int) -> np.ndarray:
        block, offset = divmod(position - segment.start, BLOCK)
        labels, _ = self._labels(segment, block)
        in_block = np.bincount(labels[:offset], minlength=len(self.names))
        counts: np.ndarray = segment.counts + block * segment.shares + in_block
        return counts

    def _labels(self, segment: MixtureSegment, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the source of each slot of a block, and its slots before it: int64 [BLOCK]."""
        key = (segment.start, block)
        if self._block is None or self._block[0] != key:
            order = permutation(BLOCK, self.seed, *key)
            labels = np.repeat(np.arange(len(self.names)), segment.shares)[order]
            ranks = np.empty(BLOCK, dtype=np.int64)
            for source, share in enumerate(segment.shares):
                ranks[labels == source] = np.arange(share)
            self._block = key, labels, ranks
        return self._block[1], self._block[2]


def divide_block(weights: np.ndarray) -> np.ndarray:
    """Divide a block by weights; a positive weight has at least one sample: int64 [sources]."""
    exact = weights / weights.sum() * BLOCK
    shares: np.ndarray = np.maximum(np.floor(exact), weights > 0).astype(np.int64)
    by_remainder = np.argsort(shares - exact, kind="stable")
    positive = by_remainder[weights[by_remainder] > 0]
    for number in range(BLOCK - int(shares.sum())):
        shares[positive[number % len(positive)]] += 1
    # Very small weights have taken a sample each.
    while shares.sum() > BLOCK:
        shares[int(np.argmax(shares))] -= 1
    return shares
