"""The loader of evaluations."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from copy import copy, deepcopy
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from launcher.data.declared import Rewound, is_stream, kept, state_owner
from launcher.data.fetch import CPU, Fetch, Request, load, size_of
from launcher.data.iterable import Collate, EvaluationStream
from launcher.data.sampler import mix
from launcher.data.transfer import on_device


class EvaluationLoader:
    """One pass over `dataset` in its own order at each `iter()`, each sample once over all ranks.

    Ranks take batches in turn, so the batches are the same on any number of ranks. At the end a
    rank may have one fewer than another, and with fewer batches than ranks it has none; it then
    takes part in collectives with `first_batch()`. `batch_samples` is the number of samples of the
    batch that was yielded last.

    Args:
        dataset: a map-style dataset or a stream.
        batch_size: samples of a batch.
        device: where the batches are moved. Default None: they stay on the host.
        seed_samples: give each sample its own random numbers, the same in each pass.
        max_samples: number of samples over all ranks. Default None: all.
    """

    def __init__(
        self,
        dataset: object,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        device: torch.device | str | None = None,
        *,
        collate_fn: Collate | None = None,
        seed_samples: bool = False,
        max_samples: int | None = None,
    ):
        self.dataset = dataset
        self.collate = collate_fn or default_collate
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.num_workers, self.device = num_workers, torch.device(device or CPU)
        self.seed_samples = seed_samples
        self.max_samples = max_samples
        self.batch_samples = 0
        self._owner = state_owner(dataset, self.collate)
        self._at_start = None if self._owner is None else deepcopy(self._owner.state_dict())
        self._rewound = Rewound(dataset)
        self.size = None if is_stream(dataset) else size_of(dataset, "validation")
        if self.size is not None:
            self.size = min(self.size, max_samples or self.size)

    def __len__(self) -> int:
        """Return this rank's batches of one pass. Raises TypeError for a stream."""
        if self.size is None:
            raise TypeError("the number of batches of a stream is not known")
        return len(self._starts(self.size))

    def _starts(self, size: int) -> range:
        first = self.rank * self.batch_size
        return range(first, size, self.batch_size * self.world_size)

    def __iter__(self) -> Iterator[Any]:
        batches = self._of_stream() if self.size is None else self._of_ranges(self.size)
        # Training may use the same collate function, and each pass gives the same batches.
        with closing(batches), kept(self._owner), self._rewound:
            if self._owner is not None:
                self._owner.load_state_dict(deepcopy(self._at_start))
            yield from batches

    def _of_ranges(self, size: int) -> Generator[Any, None, None]:
        ranges = [(start, min(start + self.batch_size, size)) for start in self._starts(size)]
        batches = batches_of(
            self.dataset, ranges, self.num_workers, self.device, self.collate, self.seed_samples
        )
        with closing(batches):
            for (start, stop), batch in zip(ranges, batches, strict=True):
                self.batch_samples = stop - start
                yield batch

    def _of_stream(self) -> Generator[Any, None, None]:
        stream = EvaluationStream(
            self.dataset,
            self.collate,
            self.batch_size,
            self.rank,
            self.world_size,
            self.seed_samples,
            self.max_samples,
        )
        with closing(load(stream, None, self.num_workers, self.device)) as batches:
            for samples, batch in on_device(batches, self.device):
                self.batch_samples = samples
                yield batch

    def first_batch(self) -> Any | None:
        """Return the first batch of all ranks, or None for an empty stream."""
        of_main = copy(self)
        of_main.rank = 0
        of_main.num_workers = 0
        return next(iter(of_main), None)


def batches_of(
    dataset: object,
    ranges: Iterable[tuple[int, int]],
    num_workers: int,
    device: torch.device,
    collate: Collate | None,
    seed_samples: bool,
) -> Generator[Any, None, None]:
    """Yield a batch for each range [start, stop) of indices. Close it to end its workers."""
    requests = (_request(start, stop, seed_samples) for start, stop in ranges)
    fetch = Fetch(dataset, collate or default_collate)
    with closing(load(fetch, requests, num_workers, device)) as batches:
        yield from on_device(batches, device)


def _request(start: int, stop: int, seed_samples: bool) -> Request:
    indices = np.arange(start, stop, dtype=np.int64)
    return Request(indices, mix(0, 0, indices) if seed_samples else None)
