"""Loaders for training and evaluation.

The loader for training is endless and resumes at any sample. The loader for evaluation makes one
exact pass.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from launcher.data.iterable import (
    Collate,
    EvaluationStream,
    Share,
    TrainingStream,
    has_state,
    is_stream,
    length,
    share,
    too_few,
)
from launcher.data.mixture_order import MixtureOrder
from launcher.data.randomness import sample_seeds
from launcher.data.sampler import Order, OrderedDataset, SampleOrder
from launcher.data.transfer import on_device, pinned
from launcher.data.workers import WorkerBatches
from launcher.errors import ConfigError
from launcher.process.lanes import Lanes
from launcher.process.rng import isolated, seed_host

logger = logging.getLogger("launcher")

CPU = torch.device("cpu")
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


class ChunkFetch:
    """`fetch[indices, seeds]` is the number of a chunk and its batch."""

    def __init__(self, fetch: Fetch, size: int):
        self.fetch, self.size = fetch, size

    def __getitem__(self, request: Request) -> object:
        return int(request[0][0]) // self.size, self.fetch[request]


class ResumableLoader:
    """An endless iterable of this rank's micro-batches.

    Epochs follow each other, and a batch may span two of them.

    A micro-batch of all ranks together covers the global positions [p, p + micro_batch_size *
    world_size). Rank r has the r-th part. `samples` counts the samples that all ranks have received
    so far. With the same seed and dataset it determines all later samples, so `num_workers`,
    `world_size` and `micro_batch_size` may change on a resume. A stream with `state_dict` and
    `load_state_dict` resumes by them. Another stream is read again up to `samples`.

    `iter()` begins at `samples`. Close the iterator (it is a generator) to end its workers. Batches
    that were prepared but not yielded do not count.

    Args:
        dataset: map-style or iterable; see `launcher.data.base.DataSource`.
        seed: seed of the order and of `seed_samples`.
        seed_samples: seed python's, numpy's and torch's global generators with (seed, epoch, index)
            for each sample, and leave the training's generators as they were. A stream is seeded at
            each epoch's start instead.
        device: device of the batches. On CUDA they are pinned and copied one ahead.
        samples: global position to begin at.
        lanes: the micro-batches of a step that this rank gets, in place of the r-th part of each.
            `samples` must then be the first sample of a step.

    Raises:
        ConfigError: the dataset is empty, or (`load_state_dict`) the state was written with another
            dataset.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        seed: int,
        micro_batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        shuffle: bool = True,
        seed_samples: bool = False,
        collate_fn: Collate | None = None,
        device: torch.device | str | None = None,
        samples: int = 0,
        lanes: Lanes | None = None,
    ):
        self.dataset = dataset
        self.seed = seed
        self.share = Share([rank], world_size) if lanes is None else Share(lanes.local, lanes.count)
        self.micro_batch_size = micro_batch_size
        self.rank = rank
        self.world_size = world_size
        self.num_workers = num_workers
        self.seed_samples = seed_samples
        self.collate = collate_fn or default_collate
        self.device = torch.device(device or CPU)
        self.samples = samples
        self.order = None if is_stream(dataset) else order_of(dataset, seed, shuffle)
        self.keeps_state = self.order is None and has_state(dataset)
        self.stream_state: tuple[int, bytes] | None = None
        """A position, in samples, and the stream's pickled state there."""

    @property
    def samples_per_batch(self) -> int:
        """Samples of one micro-batch of all ranks together.

        Each yield increases `samples` by this number.
        """
        return self.micro_batch_size * self.world_size

    @property
    def samples_per_epoch(self) -> int | None:
        """Samples of a pass over the dataset, or None for a stream without a length."""
        return length(self.dataset)

    @property
    def batches_per_epoch(self) -> Fraction | None:
        """Micro-batches in a pass over the dataset, usually a fraction.

        It is None for a stream without a length.
        """
        size = self.samples_per_epoch
        return Fraction(size, self.samples_per_batch) if size else None

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches()
        step = self.samples_per_batch
        log_replay = self._replaying()
        try:
            for item in on_device(batches, self.device):
                state, batch = item if self.keeps_state else (None, item)
                log_replay()
                self.samples += step
                self.stream_state = None if state is None else (self.samples, state)
                yield batch
        finally:
            batches.close()

    def _state_here(self) -> bytes | None:
        """The stream's pickled state at `samples`, if it is known."""
        at, state = self.stream_state or (None, None)
        return state if at == self.samples else None

    def _replaying(self) -> Callable[[], None]:
        """Log that a stream is read again up to `samples`.

        Returns:
            A function that logs at its first call how long that took.
        """
        size = length(self.dataset) if self.order is None else None
        samples = self.samples % size if size else self.samples
        if self.order is not None or self._state_here() is not None or not samples or self.rank:
            return lambda: None
        why = (
            "the checkpoint has no state of it"
            if self.keeps_state
            else "its dataset is not resumed by state_dict and load_state_dict"
        )
        logger.info("Reading %d samples of the stream again, since %s.", samples, why)
        began, seconds = time.perf_counter(), list[float]()

        def log() -> None:
            if not seconds:
                seconds.append(time.perf_counter() - began)
                logger.info("Read %d samples again in %.1f s.", samples, seconds[0])

        return log

    def _batches(self) -> Any:
        if self.order is None:
            seed = self.seed if self.seed_samples else None
            stream = TrainingStream(
                self.dataset,
                self.collate,
                self.samples,
                self.micro_batch_size,
                self.share,
                seed,
                self.keeps_state,
                self._state_here(),
            )
            return _load(stream, None, self.num_workers, self.device)
        fetch = Fetch(self.dataset, self.collate)
        return _load(fetch, self._requests(self.order), self.num_workers, self.device)

    def _requests(self, order: Order) -> Iterator[Request]:
        count, start = self.micro_batch_size, self.samples
        dataset = self.dataset if isinstance(self.dataset, OrderedDataset) else None
        for number in self.share.numbers():
            position = start + number * count
            if dataset is not None:
                dataset.read_ahead(position)
            indices = order.indices(position, count)
            seeds = (
                sample_seeds(self.seed, order.epochs(position, count), indices)
                if self.seed_samples
                else None
            )
            yield indices, seeds

    def state_dict(self) -> dict[str, Any]:
        """Return `samples`, the dataset's `fingerprint`, and what the order or stream needs.

        A mixture needs the weights that it has had; a stream that has a state needs its state.
        """
        state = {"samples": self.samples, "dataset": fingerprint(self.dataset)}
        if (stream := self._state_here()) is not None:
            state["stream"] = pickle.loads(stream)
        return state | (
            {"weights": self.order.state(self.samples)}
            if isinstance(self.order, MixtureOrder)
            else {}
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the next `iter()` after `state["samples"]` samples."""
        was, now = state.get("dataset"), fingerprint(self.dataset)
        if was != now and was is not None and now is not None:
            raise ConfigError(
                f"data: the training data were '{was}' when the checkpoint was written and are"
                f" '{now}' now; restore them, or start another run (run.tag=...), perhaps from this"
                " checkpoint's weights (run.init_from=...)."
            )
        self.samples = int(state["samples"])
        has_stream = self.keeps_state and "stream" in state
        self.stream_state = (self.samples, pickle.dumps(state["stream"])) if has_stream else None
        if isinstance(self.order, MixtureOrder) and "weights" in state:
            self.order.load(state["weights"], self.samples)


class EvaluationLoader:
    """One pass over a dataset at each `iter()`; see `evaluation_loader`."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        rank: int,
        world_size: int,
        num_workers: int,
        device: torch.device,
        collate: Collate,
        seed: int | None,
        max_samples: int | None,
        has_chunks: bool,
    ):
        self.dataset = dataset
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.num_workers = num_workers
        self.device = device
        self.collate = collate
        self.seed = seed
        self.max_samples = max_samples
        self.has_chunks = has_chunks
        self.chunk = -1
        """Number of the last chunk, if there are chunks."""
        needed = 1 if has_chunks else world_size
        if max_samples is not None and max_samples < needed:
            raise ConfigError(
                f"hooks.evaluation.max_samples={max_samples}: is fewer than the {world_size} ranks;"
                f" use at least {world_size}."
            )
        self.size = None if is_stream(dataset) else _size(dataset, "validation")
        if self.size is not None and max_samples is not None:
            self.size = min(self.size, max_samples)
        if self.size is not None and self.size < needed:
            raise too_few(self.size, world_size)

    def of_rank(self, rank: int) -> EvaluationLoader:
        """The loader of another rank."""
        other = copy(self)
        other.rank = rank
        return other

    def __len__(self) -> int:
        """Batches of one pass, the same on every rank. Raises TypeError for a stream."""
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

    def _batches(self) -> Any:
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
            return _load(stream, None, self.num_workers, self.device)
        fetch, requests = Fetch(self.dataset, self.collate), self._requests(self.size)
        if self.has_chunks:
            return _load(
                ChunkFetch(fetch, self.batch_size),
                self._chunks(self.size),
                self.num_workers,
                self.device,
            )
        return _load(fetch, requests, self.num_workers, self.device)

    def _chunks(self, size: int) -> Iterator[Request]:
        """Yield the samples of one chunk for each rank at a time.

        In the last round, a rank without a chunk repeats the round's first chunk.
        """
        for first in range(0, size, self.batch_size * self.world_size):
            start = first + self.rank * self.batch_size
            start = start if start < size else first
            yield self._request(start, min(start + self.batch_size, size))

    def _request(self, start: int, stop: int) -> Request:
        return _request(start, stop, self.seed)

    def _requests(self, size: int) -> Iterator[Request]:
        full = self.batch_size * self.world_size
        for number in range(len(self)):
            first = number * full
            count = full if number < len(self) - 1 else size - first
            start, stop = share(count, self.rank, self.world_size)
            yield self._request(first + start, first + stop)


def evaluation_loader(
    dataset: object,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    device: torch.device | str | None = None,
    *,
    collate_fn: Collate | None = None,
    seed_samples: bool = False,
    seed: int = 0,
    max_samples: int | None = None,
    has_chunks: bool = False,
) -> EvaluationLoader:
    """Make a loader of one pass over `dataset` in its own order.

    It has each sample exactly once over all ranks together. `max_samples` limits it to the first n
    samples.

    Every rank gets the same number of batches, none of them empty, since a sharded model's forward
    is a collective. All have `batch_size` samples except the last, which shares out the remaining
    samples: from 1 to batch_size + 1.

    Raises ConfigError when there are fewer samples than ranks.

    Args:
        dataset: a map-style dataset or a stream.
        batch_size: samples of a batch of one rank.
        rank: this process among all.
        world_size: the number of ranks.
        num_workers: processes that load. With 0, this process loads.
        device: where the batches are moved. Default None: they stay on the host.
        collate_fn: function that makes a batch of samples. Default None: torch's.
        seed_samples: give each sample its own random numbers, which the seed decides.
        seed: the seed of these random numbers.
        max_samples: number of samples over all ranks. Default None: all.
        has_chunks: the batches are the same on any number of ranks, which take them in turn. Chunk
            c has the samples from c * batch_size on. A rank that has no chunk at the end repeats
            another one. `chunk` is the number of the last batch.
    """
    target = torch.device(device or CPU)
    collate = collate_fn or default_collate
    return EvaluationLoader(
        dataset,
        batch_size,
        rank,
        world_size,
        num_workers,
        target,
        collate,
        seed if seed_samples else None,
        max_samples,
        has_chunks,
    )


def batches_of(
    dataset: object,
    ranges: Iterable[tuple[int, int]],
    num_workers: int,
    device: torch.device,
    collate: Collate | None = None,
    seed_samples: bool = False,
) -> Iterator[Any]:
    """A batch for each range [start, stop) of indices.

    Close the iterator (it is a generator) to end its workers.
    """
    requests = (_request(start, stop, 0 if seed_samples else None) for start, stop in ranges)
    batches = _load(Fetch(dataset, collate or default_collate), requests, num_workers, device)
    try:
        yield from on_device(batches, device)
    finally:
        batches.close()


def _request(start: int, stop: int, seed: int | None) -> Request:
    indices = np.arange(start, stop, dtype=np.int64)
    if seed is None:
        return indices, None
    return indices, sample_seeds(seed, np.zeros_like(indices), indices)


def order_of(dataset: object, seed: int, shuffle: bool) -> Order:
    """Return the order of a map-style dataset.

    It is the dataset's own if it is an `OrderedDataset`, or else epochs of all samples.

    Raises:
        ConfigError: it has no length, or no sample.
    """
    if isinstance(dataset, OrderedDataset):
        return dataset.order(seed, shuffle)
    return SampleOrder(_size(dataset, "training"), seed, shuffle)


def fingerprint(dataset: object) -> str | None:
    """Return the part of a checkpoint that identifies its data.

    It is the dataset's `fingerprint`, else its length, else None.
    """
    identifier = getattr(dataset, "fingerprint", None)
    if identifier is not None:
        return str(identifier)
    size = length(dataset)
    return None if size is None else f"{size} samples"


def _size(dataset: object, name: str) -> int:
    size = length(dataset)
    if size is None:
        raise ConfigError(
            f"data: {type(dataset).__name__} has no __len__; add one, or make it an"
            " IterableDataset."
        )
    if size == 0:
        raise ConfigError(f"data: the {name} set ({type(dataset).__name__}) is empty.")
    return size


def _load(
    source: object,
    requests: Iterator[Request] | None,
    num_workers: int,
    device: torch.device,
) -> Any:
    """Return an iterator with `close()` over the batches.

    They are made here or by workers, and are in pinned memory for CUDA.
    """
    pin = device.type == "cuda"
    if num_workers:
        return WorkerBatches(source, requests, num_workers, pin)
    batches = _here(source, requests)
    return pinned(batches) if pin else batches


def _here(source: Any, requests: Iterator[Request] | None) -> Iterator[object]:
    if requests is None:
        yield from source
    else:
        for request in requests:
            yield source[request]
