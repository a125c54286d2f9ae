"""Fetch the batches that requests name, in this process or in workers."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from launcher.data.declared import epoch_owners, pickle_state
from launcher.data.iterable import Collate, length
from launcher.data.sample_errors import collate_samples, while_reading
from launcher.data.sampler import mix
from launcher.data.transfer import pin_batches
from launcher.data.workers import WorkerBatches
from launcher.errors import ConfigError
from launcher.process.object_marks import MAX_LOOKS, Looks, Restored
from launcher.process.rng import call_isolated, seed_host

CPU = torch.device("cpu")
Batches = WorkerBatches | Generator[object, None, None]
"""An iterator with `close()`."""


class Request(NamedTuple):
    """The samples of a batch: int64 [B], with seeds uint64 [B] and epochs int64 [B] if needed."""

    indices: np.ndarray
    seeds: np.ndarray | None = None
    epochs: np.ndarray | None = None


class Fetch:
    """`fetch[request]` is one collated batch of a map-style dataset.

    Without seeds it comes from the dataset's `get_batch(indices)`, `__getitems__` or `__getitem__`.
    With seeds, samples are read one by one; the global generators are seeded before each, and
    restored at the end. `set_epoch` is called before the first sample of an epoch.

    Args:
        seed: seeds, with the epoch, what `set_epoch` draws. Default None: it is not seeded.
    """

    def __init__(self, dataset: Any, collate: Collate, seed: int | None = None):
        self.dataset = dataset
        self.collate = collate
        self.seed = seed
        self.get_batch = getattr(dataset, "get_batch", None)
        self.get_items = getattr(dataset, "__getitems__", None)
        self.epoch: int | None = None
        self._epoch_owners = epoch_owners(dataset)

    def __getitem__(self, request: Request) -> object:
        if request.seeds is not None:
            return call_isolated(lambda: self._one_by_one(request))
        epochs = request.epochs
        if epochs is not None:
            if (epochs != epochs[0]).any():
                return self._one_by_one(request)
            self.set_epoch(int(epochs[0]))
        if self.get_batch is not None:
            return self.get_batch(request.indices)
        if self.get_items is None:
            return self._one_by_one(request)
        indices = request.indices.tolist()
        return collate_samples(self.collate, self.dataset, indices, self.get_items(indices))

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            # A resume calls it in the middle of an epoch, and each worker calls it.
            if self.seed is None:
                self._pass_epoch(epoch)
            else:
                call_isolated(lambda: self._pass_epoch(epoch))

    def _pass_epoch(self, epoch: int) -> None:
        if self.seed is not None:
            seed_host(int(mix(self.seed, epoch)[0]))
        for owner in self._epoch_owners:
            owner.set_epoch(epoch)

    def _one_by_one(self, request: Request) -> object:
        indices, seeds, epochs = request
        samples = []
        for number, index in enumerate(indices.tolist()):
            if epochs is not None:
                self.set_epoch(int(epochs[number]))
            if seeds is not None:
                seed_host(int(seeds[number]))
            with while_reading(self.dataset, index):
                samples.append(self.dataset[index])
        return collate_samples(self.collate, self.dataset, indices.tolist(), samples)


class Reported(NamedTuple):
    """A batch of a worker, and what has changed there and a resume would lose."""

    batch: Any
    lost: dict[str, str]


class WatchedFetch:
    """`fetch[request]` in a worker, with what its first two batches have changed.

    It looks before the first batch, and after the first and the second. Each worker has copies of
    the dataset and of the collate function, whose state is not stored.
    """

    def __init__(self, fetch: Fetch):
        self.fetch, self._looks = fetch, Looks()

    def __getitem__(self, request: Request) -> object:
        if self._looks.count >= MAX_LOOKS:
            return self.fetch[request]
        if not self._looks.count:
            self._look()
        batch = self.fetch[request]
        lost = self._look()
        return Reported(batch, lost) if lost else batch

    def _look(self) -> dict[str, str]:
        fetch = self.fetch
        roots = {"data.dataset": fetch.dataset, "data.collate_fn": fetch.collate}
        restored = Restored(epochs=set(map(id, epoch_owners(fetch.dataset))))
        return self._looks.look(roots, restored, fetch.epoch or 0)


@dataclass
class StatefulFetch:
    """`fetch[request]` is the owner's pickled state after a batch, and the batch."""

    fetch: Fetch
    owner: Any

    def __getitem__(self, request: Request) -> tuple[bytes, object]:
        batch = self.fetch[request]
        return pickle_state(self.fetch.dataset, self.owner.state_dict()), batch


def size_of(dataset: object, name: str) -> int:
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
    """Return an iterator over the batches, which are in pinned memory for CUDA."""
    pin = device.type == "cuda"
    if num_workers:
        return WorkerBatches(source, requests, num_workers, pin)
    # A generator makes another error of a StopIteration, which `map` would take for the end.
    items = source if requests is None else (source[request] for request in requests)
    batches = (batch for batch in items)
    return pin_batches(batches) if pin else batches
