"""The number of samples of a batch, as the loader that made the batch knows it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader

DECLARE = "give it an attribute batch_samples, the samples of the batch that it has yielded last"


def samples_of_last_batch(loader: Any) -> int | None:
    """Return the samples of the batch that a loader has yielded last, or None if it is not known.

    A loader declares them as `batch_samples`. Another DataLoader declares its `batch_size`, of
    which the last batch of a pass may have fewer.
    """
    if hasattr(loader, "batch_samples"):
        samples: int | None = loader.batch_samples
        return samples
    return loader.batch_size if isinstance(loader, DataLoader) else None


@dataclass
class NotedSizes:
    """The order of a DataLoader, with the samples of each batch that it has begun.

    A DataLoader yields its batches in this order, also if workers load ahead.
    """

    order: Any
    has_batches: bool
    _sizes: deque[int | None] = field(default_factory=deque)

    def __iter__(self) -> Iterator[object]:
        # A pass that was interrupted has left some.
        self._sizes.clear()
        for item in self.order:
            self._sizes.append(self._size_of(item))
            yield item

    def __len__(self) -> int:
        return len(self.order)

    def take(self) -> int | None:
        """Return the samples of the next batch that the DataLoader yields, or None if unknown."""
        return self._sizes.popleft()

    def _size_of(self, item: Any) -> int | None:
        if self.has_batches:
            return len(item) if hasattr(item, "__len__") else None
        # An index may be a tuple; a list is several indices, which the dataset reads at once.
        return len(item) if isinstance(item, list) else 1


@dataclass
class CountedCollate:
    """Calls a collate function, and returns the number of samples with the batch."""

    collate: Any

    def __call__(self, samples: list[object]) -> tuple[int, object]:
        return len(samples), self.collate(samples)
