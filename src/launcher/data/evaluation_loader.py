"""The loader of evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from launcher.data.fetch import CPU, Batches, Fetch, Request, load, size_of
from launcher.data.iterable import Collate, EvaluationStream, is_stream, share, too_few
from launcher.data.sampler import mix
from launcher.data.transfer import on_device
from launcher.errors import ConfigError


class ChunkFetch:
    def __init__(self, fetch: Fetch, size: int):
        self.fetch, self.size = fetch, size

    def __getitem__(self, request: Request) -> object:
        return int(request.indices[0]) // self.size, self.fetch[request]


class EvaluationLoader:
    """One pass over `dataset` in its own order at each `iter()`, each sample once over all ranks.

    Every rank gets the same number of batches, none of them empty, since a sharded model's forward
    is a collective. All have `batch_size` samples except the last, which shares out the remaining
    samples: from 1 to batch_size + 1.

    Args:
        dataset: a map-style dataset or a stream.
        batch_size: samples of a batch of one rank.
        device: where the batches are moved. Default None: they stay on the host.
        seed_samples: give each sample its own random numbers, the same in each pass.
        max_samples: number of samples over all ranks. Default None: all.
        has_chunks: the batches are the same on any number of ranks, which take them in turn. Chunk
            c has the samples from c * batch_size on. A rank that has no chunk at the end repeats
            another one. `chunk` is the number of the last batch.
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
        has_chunks: bool = False,
    ):
        self.dataset, self.collate = dataset, collate_fn or default_collate
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size
        self.num_workers, self.device = num_workers, torch.device(device or CPU)
        self.seed = 0 if seed_samples else None
        self.max_samples, self.has_chunks = max_samples, has_chunks
        self.chunk = -1
        needed = 1 if has_chunks else world_size
        if max_samples is not None and max_samples < needed:
            raise ConfigError(
                f"hooks.evaluation.max_samples={max_samples}: is fewer than the {world_size} ranks;"
                f" use at least {world_size}."
            )
        self.size = None if is_stream(dataset) else size_of(dataset, "validation")
        if self.size is not None:
            self.size = min(self.size, max_samples or self.size)
            if self.size < needed:
                raise too_few(self.size, world_size)

    def __len__(self) -> int:
        """Return the batches of one pass, the same on every rank. Raises TypeError for a stream."""
        if self.size is None:
            raise TypeError("the number of batches of a stream is not known")
        if self.has_chunks:
            return -(-self.size // (self.batch_size * self.world_size))
        return 1 + (self.size - self.world_size) // (self.batch_size * self.world_size)

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches()
        try:
            for batch in on_device(batches, self.device):
                if self.has_chunks:
                    self.chunk, batch = batch
                yield batch
        finally:
            batches.close()

    def _batches(self) -> Batches:
        if self.size is None:
            stream = EvaluationStream(
                self.dataset,
                self.collate,
                self.batch_size,
                self.rank,
                self.world_size,
                self.seed,
                self.max_samples,
                self.has_chunks,
            )
            return load(stream, None, self.num_workers, self.device)
        fetch = Fetch(self.dataset, self.collate)
        if self.has_chunks:
            chunks = ChunkFetch(fetch, self.batch_size)
            return load(chunks, self._chunks(self.size), self.num_workers, self.device)
        return load(fetch, self._requests(self.size), self.num_workers, self.device)

    def _chunks(self, size: int) -> Iterator[Request]:
        """Yield this rank's chunks. In the last round, a rank without one repeats the first."""
        for first in range(0, size, self.batch_size * self.world_size):
            start = first + self.rank * self.batch_size
            start = start if start < size else first
            yield _request(start, min(start + self.batch_size, size), self.seed)

    def _requests(self, size: int) -> Iterator[Request]:
        full = self.batch_size * self.world_size
        for number in range(len(self)):
            first = number * full
            count = full if number < len(self) - 1 else size - first
            start, stop = share(count, self.rank, self.world_size)
            yield _request(first + start, first + stop, self.seed)


def batches_of(
    dataset: object,
    ranges: Iterable[tuple[int, int]],
    num_workers: int,
    device: torch.device,
    collate: Collate | None = None,
    seed_samples: bool = False,
) -> Iterator[Any]:
    """Yield a batch for each range [start, stop) of indices. Close it to end its workers."""
    requests = (_request(start, stop, 0 if seed_samples else None) for start, stop in ranges)
    batches = load(Fetch(dataset, collate or default_collate), requests, num_workers, device)
    try:
        yield from on_device(batches, device)
    finally:
        batches.close()


def _request(start: int, stop: int, seed: int | None) -> Request:
    indices = np.arange(start, stop, dtype=np.int64)
    return Request(indices, None if seed is None else mix(seed, 0, indices))
