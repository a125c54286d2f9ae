"""The loader for training: endless, and resumed at any sample."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from launcher.data.declared import (
    CollateState,
    State,
    add_restored,
    epoch_owners,
    has_state,
    hidden_parts,
    in_workers,
    is_stream,
    kept,
    names_of_states,
    state_owner,
)
from launcher.data.fetch import (
    CPU,
    Batches,
    Fetch,
    Reported,
    Request,
    StatefulFetch,
    WatchedFetch,
    load,
    size_of,
)
from launcher.data.iterable import Collate, Share, TrainingStream, fingerprint, length
from launcher.data.mixture_dataset import Mixture
from launcher.data.mixture_order import MixtureOrder
from launcher.data.sampler import Order, SampleOrder, mix
from launcher.data.transfer import on_device
from launcher.process.lanes import Lanes
from launcher.process.object_marks import Restored
from launcher.process.plural import plural
from launcher.rundir.data_files import check_fingerprint

logger = logging.getLogger("launcher")
ALL = slice(None)


class ResumableLoader:
    """An endless iterable of this rank's micro-batches; a batch may span two epochs.

    A micro-batch of all ranks together covers the global positions [p, p + micro_batch_size *
    world_size), and rank r has the r-th part. `samples`, where `iter()` begins, counts the samples
    that all ranks have received. With the same seed and dataset it determines all later samples, so
    `num_workers`, `world_size` and `micro_batch_size` may change on a resume. A dataset with
    `state_dict` and `load_state_dict` resumes by them. Another stream is read again up to
    `samples`. Close the iterator to end its workers.

    Args:
        dataset: map-style or iterable; see `launcher.data.base.DataSource`.
        seed_samples: seed python's, numpy's and torch's global generators with (seed, epoch, index)
            for each sample, and leave the training's generators as they were. A stream is seeded at
            each epoch's start instead.
        device: device of the batches. On CUDA they are pinned and copied one ahead.
        samples: global position to begin at.
        lanes: the micro-batches of a step that this rank gets, in place of the r-th part of each.
            `samples` must then be the first sample of a step.
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
        self.seed_samples = seed_samples
        self.share = Share([rank], world_size) if lanes is None else Share(lanes.local, lanes.count)
        self.micro_batch_size = micro_batch_size
        self.samples = samples
        self.rank = rank
        self.world_size = world_size
        self.num_workers = num_workers
        self.collate, self.device = collate_fn or default_collate, torch.device(device or CPU)
        self.order = None if is_stream(dataset) else order_of(dataset, seed, shuffle)
        self._fetch: Fetch | None = None
        self.lost_in_workers: dict[str, str] = {}
        """Changes in a worker that a resume would lose (see `launcher.data.fetch`)."""
        self._counts_epochs = bool(epoch_owners(dataset))
        # The state of the data, if they have one.
        self._owner = dataset if has_state(dataset) else None
        if self.order is not None:
            self._owner = state_owner(dataset, self.collate)
        self.keeps_state = self._owner is not None and not (num_workers and self.order is not None)
        self.stream_state: tuple[int, bytes] | None = None
        """A position, in samples, and the dataset's pickled state there."""
        if not rank:
            self._warn()

    def _warn(self) -> None:
        is_mixture = isinstance(self.dataset, Mixture)
        for part in self.dataset.datasets.values() if is_mixture else [self.dataset]:
            for text in hidden_parts(part):
                logger.warning("data: %s", text)
        lost = names_of_states(self.dataset, self.collate)
        if self.num_workers and self.order is not None:
            for name in lost:
                logger.warning("data.num_workers=%d: %s", self.num_workers, in_workers(name))
        elif self.order is None and CollateState(self.collate).draws:
            logger.warning(
                "The state of data.collate_fn (%s) is not in a checkpoint, since the data are a"
                " stream; let it draw from torch's, NumPy's or Python's own generators.",
                lost[-1],
            )

    @property
    def batch_samples(self) -> int:
        """Return the number of samples of each batch."""
        return self.micro_batch_size

    @property
    def samples_per_batch(self) -> int:
        """Return by how much each yield increases `samples`."""
        return self.micro_batch_size * self.world_size

    @property
    def samples_per_epoch(self) -> int | None:
        """Return the samples of a pass, or None for a stream without a length."""
        return length(self.dataset)

    @property
    def batches_per_epoch(self) -> Fraction | None:
        """Return the micro-batches of a pass, or None for a stream without a length."""
        size = self.samples_per_epoch
        return Fraction(size, self.samples_per_batch) if size else None

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches()
        self._log_replay()
        try:
            for item in on_device(batches, self.device):
                state, batch = item if self.keeps_state else (None, item)
                if isinstance(batch, Reported):
                    self.lost_in_workers |= batch.lost
                    batch = batch.batch
                self.samples += self.samples_per_batch
                self.stream_state = None if state is None else (self.samples, state)
                yield batch
        finally:
            batches.close()

    def _state_here(self) -> bytes | None:
        """The dataset's pickled state at `samples`, if it is known."""
        at, state = self.stream_state or (None, None)
        return state if at == self.samples else None

    def _log_replay(self) -> None:
        """Log that a stream is read again up to the first sample."""
        size = length(self.dataset)
        samples = self.samples % size if size else self.samples
        if self.order is not None or self._state_here() is not None or not samples or self.rank:
            return
        why = (
            "the checkpoint has no state of it"
            if self.keeps_state
            else "its dataset is not resumed by state_dict and load_state_dict"
        )
        logger.info("Reading %s of the stream again, since %s.", plural(samples, "sample"), why)

    def _batches(self) -> Batches:
        if self.order is None:
            stream = TrainingStream(
                self.dataset,
                self.collate,
                self.samples,
                self.micro_batch_size,
                self.share,
                self.seed if self.seed_samples else None,
                self.keeps_state,
                self._state_here(),
            )
            return load(stream, None, self.num_workers, self.device)
        # The fetch remembers the epoch that was passed to the dataset.
        fetch = Fetch(self.dataset, self.collate, self.seed if self.seed_samples else None)
        self._fetch = fetch
        requests = self._requests(self.order)
        if not self.keeps_state:
            source = WatchedFetch(fetch) if self.num_workers else fetch
            return load(source, requests, self.num_workers, self.device)
        assert self._owner is not None
        saved = self._state_here()
        if saved is not None:
            # A dataset may restart at `set_epoch`.
            fetch.set_epoch(int(self.order.epochs(max(0, self.samples - 1), 1)[0]))
            self._owner.load_state_dict(pickle.loads(saved))
        return load(StatefulFetch(fetch, self._owner), requests, 0, self.device)

    def _requests(self, order: Order) -> Iterator[Request]:
        start = self.samples
        for number in self.share.numbers():
            yield self._request(order, start + number * self.micro_batch_size)

    def _request(self, order: Order, position: int, chosen: slice | np.ndarray = ALL) -> Request:
        """Return the chosen samples of the micro-batch at a global position."""
        indices = order.indices(position, self.micro_batch_size)[chosen]
        if not self._counts_epochs and not self.seed_samples:
            return Request(indices)
        epochs = order.epochs(position, self.micro_batch_size)[chosen]
        seeds = mix(self.seed, epochs, indices) if self.seed_samples else None
        return Request(indices, seeds, epochs if self._counts_epochs else None)

    @property
    def divides_batches(self) -> bool:
        """Return whether the first axis of each tensor of a batch is known to be its samples."""
        return self.collate is default_collate

    def read_again(self, position: int, chosen: np.ndarray) -> Any:
        """Read some samples of the micro-batch at a position, in this process, as a batch.

        The state of the dataset and of its collate function stays as it was.
        """
        fetch = self._fetch
        assert self.order is not None and fetch is not None
        epoch = fetch.epoch
        with kept(self._owner):
            batch = fetch[self._request(self.order, position, chosen)]
            if epoch is not None:
                fetch.set_epoch(epoch)
        return next(on_device(iter([batch]), self.device))

    def add_restored(self, restored: Restored) -> None:
        """Add what `load_state_dict` restores, and what gets the epoch."""
        restored.epochs.update(map(id, epoch_owners(self.dataset)))
        if self.keeps_state:
            add_restored(self._owner, restored)
        elif self.order is None:
            # The stream is read again.
            restored.objects.add(id(self.dataset))

    def state_dict(self) -> State:
        """Return `samples`, the dataset's `fingerprint`, and what the order or stream needs."""
        state: State = {"samples": self.samples, "dataset": fingerprint(self.dataset)}
        stream = self._state_here()
        if stream is not None:
            state["stream"] = pickle.loads(stream)
        if isinstance(self.order, MixtureOrder):
            state["weights"] = self.order.state(self.samples)
        return state

    def load_state_dict(self, state: State) -> None:
        check_fingerprint(state.get("dataset"), fingerprint(self.dataset))
        self.samples = int(state["samples"])
        has_stream = self.keeps_state and "stream" in state
        self.stream_state = (self.samples, pickle.dumps(state["stream"])) if has_stream else None
        if isinstance(self.order, MixtureOrder) and "weights" in state:
            self.order.load(state["weights"], self.samples)


def order_of(dataset: object, seed: int, shuffle: bool) -> Order:
    if isinstance(dataset, Mixture):
        return dataset.order(seed, shuffle)
    return SampleOrder(size_of(dataset, "training"), seed, shuffle)
