"""Fetch the batches that requests name, in this process or in workers."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import torch

from launcher.data.iterable import Collate, length
from launcher.data.transfer import pinned
from launcher.data.workers import WorkerBatches
from launcher.errors import ConfigError
from launcher.process.rng import isolated, seed_host

CPU = torch.device("cpu")
Batches = WorkerBatches | Generator[object, None, None]
"""An iterator with `close()`."""
# Indices int64 [B], and their seeds uint64 [B] or None.
Request = tuple[np.ndarray, np.ndarray | None]


class Fetch:
    """`fetch[indices, seeds]` is one collated batch of a map-style dataset.

    Without seeds it comes from the dataset's `get_batch(indices)`, its `__getitems__`, or its
    `__getitem__`. With seeds, samples are read one by one; the global generators are seeded before
    each, and restored at the end.
    """

    def __init__(self, dataset: Any, collate: Collate):
        self.dataset = dataset
        self.collate = collate
        self.get_batch = getattr(dataset, "get_batch", None)

    def __getitem__(self, request: Request) -> object:
        indices, seeds = request
        if seeds is not None:
            return isolated(lambda: self._seeded(indices.tolist(), seeds.tolist()))
        if self.get_batch is not None:
            return self.get_batch(indices)
        if hasattr(self.dataset, "__getitems__"):
            return self.collate(self.dataset.__getitems__(indices.tolist()))
        return self.collate([self.dataset[index] for index in indices.tolist()])

    def _seeded(self, indices: list[int], seeds: list[int]) -> object:
        samples = []
        for index, seed in zip(indices, seeds, strict=True):
            seed_host(seed)
            samples.append(self.dataset[index])
        return self.collate(samples)


def size_of(dataset: object, name: str) -> int:
    """Return the number of samples of a map-style dataset.

    Raises:
        ConfigError: it has no length, or no sample.
    """
    size = length(dataset)
    if size is None:
        raise ConfigError(
            f"data: {type(dataset).__name__} has no __len__; add one, or make it an"
            " IterableDataset."
        )
    if size == 0:
        raise ConfigError(f"data: the {name} set ({type(dataset).__name__}) is empty.")
    return size


def load(
    source: Any, requests: Iterator[Request] | None, num_workers: int, device: torch.device
) -> Batches:
    """Return an iterator over the batches.

    They are made here or by workers, and are in pinned memory for CUDA.
    """
    pin = device.type == "cuda"
    if num_workers:
        return WorkerBatches(source, requests, num_workers, pin)
    batches = _here(source, requests)
    return pinned(batches) if pin else batches


def _here(source: Any, requests: Iterator[Request] | None) -> Generator[object, None, None]:
    if requests is None:
        yield from source
    else:
        for request in requests:
            yield source[request]
