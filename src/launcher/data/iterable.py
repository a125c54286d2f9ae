"""Streams: a user's `IterableDataset` as an endless, exactly resumable sequence of samples.

Every rank reads the whole stream, in at most one worker process, and keeps its own share. So
samples have the order of the stream, for any number of ranks and workers. The dataset must not
divide itself among ranks.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, TypeVar

from launcher.data.declared import State, epoch_owners, pickle_state
from launcher.data.sample_errors import collate_samples
from launcher.data.sampler import mix
from launcher.errors import ConfigError
from launcher.process.rng import (
    HostState,
    call_isolated,
    host_of,
    host_state,
    host_tree,
    restore_host,
    seed_host,
)

Collate = Callable[[list[object]], object]


def length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def fingerprint(dataset: object) -> str | None:
    """Return what identifies data in a checkpoint: the dataset's `fingerprint`, else its length."""
    identifier = getattr(dataset, "fingerprint", None)
    if identifier is not None:
        return str(identifier)
    size = length(dataset)
    return None if size is None else f"{size} samples"


T = TypeVar("T")


class StreamGenerators:
    """The CPU generators of a stream's code: its own, or with `is_seeded` False the global ones.

    Its own continue from one `run` to the next, and the global ones are left as they were.
    """

    def __init__(self, is_seeded: bool):
        self.is_seeded = is_seeded
        self._saved: HostState | None = None

    def run(self, function: Callable[[], T]) -> T:
        def inside() -> T:
            result = self._begin(function)
            self._saved = host_state()
            return result

        return call_isolated(inside) if self.is_seeded else function()

    def peek(self, function: Callable[[], T]) -> T:
        """Call a function as `run` does, without advancing the stream's own generators."""
        if self.is_seeded:
            return call_isolated(lambda: self._begin(function))
        return function()

    def state(self) -> Any:
        return None if self._saved is None else host_tree(self._saved)

    def load_state(self, state: Any) -> None:
        self._saved = None if state is None or not self.is_seeded else host_of(state)

    def _begin(self, function: Callable[[], T]) -> T:
        if self._saved is not None:
            restore_host(self._saved)
        return function()


class StreamSamples:
    """The samples of a stream from a global position on, epoch after epoch, without end.

    With a `seed`, the global generators are seeded for each epoch. Samples before `position` are
    read and dropped, but whole epochs of known length are skipped. Nothing is read if `state`,
    which `state()` returned there, is passed.
    """

    def __init__(
        self,
        dataset: Any,
        seed: int | None,
        position: int = 0,
        state: State | None = None,
    ):
        self.dataset = dataset
        self.seed = seed
        self.size = length(dataset)
        if self.size == 0:
            raise ConfigError(_empty(dataset, 0))
        self._iterator: Iterator[Any] | None = None
        self._count = 0
        if state is None:
            self._epoch, self._skip = divmod(position, self.size) if self.size else (0, position)
            return
        self._epoch = state["epoch"]
        self._count = state["count"]
        self._skip = 0
        self._set_epoch()
        dataset.load_state_dict(state["dataset"])
        self._iterator = iter(dataset)

    def state(self) -> State:
        return {"epoch": self._epoch, "count": self._count, "dataset": self.dataset.state_dict()}

    def __iter__(self) -> StreamSamples:
        return self

    def __next__(self) -> object:
        while True:
            if self._iterator is None:
                self._set_epoch()
                if self.seed is not None:
                    seed_host(int(mix(self.seed, self._epoch)[0]))
                self._iterator = iter(self.dataset)
            for sample in self._iterator:
                self._count += 1
                if self._count > self._skip:
                    return sample
            self._end_epoch()

    def _set_epoch(self) -> None:
        for owner in epoch_owners(self.dataset):
            owner.set_epoch(self._epoch)

    def _end_epoch(self) -> None:
        if self._count == 0:
            raise ConfigError(_empty(self.dataset, self._epoch))
        if self.size is not None and self._count != self.size:
            raise ConfigError(
                f"data.dataset={type(self.dataset).__name__}: epoch {self._epoch} gave"
                f" {self._count} samples where len() says {self.size}, so a resume would not find"
                " its place; make them agree or define no __len__."
            )
        self._skip = max(0, self._skip - self._count)
        self._epoch += 1
        self._count = 0
        self._iterator = None


def _empty(dataset: object, epoch: int) -> str:
    return (
        f"data.dataset={type(dataset).__name__}: epoch {epoch} gave no sample; each iter() of it"
        " must begin a new pass over at least one."
    )


@dataclass(frozen=True)
class Share:
    """A rank's micro-batches, numbered `local` in each round of `count`."""

    local: Sequence[int]
    count: int

    def number(self, turn: int) -> int:
        """Return a turn's micro-batch, counted over all ranks."""
        rounds, at = divmod(turn, len(self.local))
        return rounds * self.count + self.local[at]

    def numbers(self) -> Iterator[int]:
        return map(self.number, count())

    def end_of_round(self, number: int) -> int | None:
        """Return the next round's first micro-batch, or None if a round is not at its end."""
        if number % self.count == self.local[-1]:
            return number - self.local[-1] + self.count
        return None


@dataclass
class TrainingStream:
    """This rank's micro-batches of a stream, without end, from a global sample position on.

    With `keeps_state` it yields `(state, batch)`: the stream's pickled state after the round of all
    ranks' micro-batches, or None in the middle of a round.
    """

    dataset: Any
    collate: Collate
    position: int
    size: int
    share: Share
    seed: int | None
    keeps_state: bool = False
    state: bytes | None = None

    def __iter__(self) -> Iterator[Any]:
        generators = StreamGenerators(self.seed is not None)
        if self.state is None:
            read = self.share.number(0)
            samples = StreamSamples(self.dataset, self.seed, self.position + read * self.size)
        else:
            read = 0
            state = pickle.loads(self.state)
            generators.load_state(state["random"])
            samples = generators.peek(lambda: StreamSamples(self.dataset, self.seed, state=state))
        for number in self.share.numbers():
            skip = (number - read) * self.size
            read = number + 1
            drawn = generators.run(lambda: list(islice(samples, skip, skip + self.size)))  # noqa: B023 - called at once
            first = self.position + number * self.size
            # A rank collates only its own samples, so this must not advance the generators.
            batch = generators.peek(lambda: self._collate(first, drawn))  # noqa: B023
            if not self.keeps_state:
                yield batch
                continue
            state_there = None
            end = self.share.end_of_round(number)
            if end is not None:
                rest = (end - read) * self.size
                read = end
                generators.run(lambda: next(islice(samples, rest, rest), None))  # noqa: B023
                state = samples.state() | {"random": generators.state()}
                state_there = pickle_state(self.dataset, state)
            yield state_there, batch

    def _collate(self, first: int, samples: list[object]) -> object:
        numbers = range(first, first + len(samples))
        return collate_samples(self.collate, self.dataset, numbers, samples)


@dataclass
class EvaluationStream:
    """This rank's batches of one pass over a stream, each after its number of samples."""

    dataset: Any
    collate: Collate
    batch_size: int
    rank: int
    world_size: int
    is_seeded: bool
    max_samples: int | None

    def __iter__(self) -> Iterator[tuple[int, object]]:
        generators = StreamGenerators(self.is_seeded)
        samples = self._samples()
        size = self.batch_size
        while of_all := generators.run(lambda: list(islice(samples, size * self.world_size))):
            if own := of_all[self.rank * size : (self.rank + 1) * size]:
                yield len(own), generators.peek(lambda: self._collate(own))

    def _collate(self, samples: list[object]) -> object:
        return collate_samples(self.collate, self.dataset, range(len(samples)), samples)

    def _samples(self) -> Iterator[object]:
        if self.is_seeded:
            seed_host(int(mix(0, 0)[0]))
        yield from islice(self.dataset, self.max_samples)
