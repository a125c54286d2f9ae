"""Streams: a user's `IterableDataset` as an endless, exactly resumable sequence of samples.

Every rank reads the whole stream, in at most one worker process, and keeps its own share. So
samples have the order of the stream, for any number of ranks and workers. The dataset must not
divide itself among ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from launcher.data.randomness import PrivateGenerators
from launcher.data.sampler import mix
from launcher.errors import ConfigError
from launcher.process.rng import seed_host

Collate = Callable[[list[Any]], Any]
Run = Callable[[Callable[[], Any]], Any]


def is_stream(dataset: object) -> bool:
    """Return whether an object can be iterated but not indexed, as an `IterableDataset`."""
    from torch.utils.data import IterableDataset

    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


def length(dataset: Any) -> int | None:
    """Return `len(dataset)`, or None if it has no length."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def stream_samples(dataset: Any, seed: int | None, position: int = 0) -> Iterator[Any]:
    """Yield the samples of the stream from a global position on, epoch after epoch, without end.

    If the dataset has a length, whole epochs before the position are skipped. The rest is read and
    dropped. Calls the dataset's `set_epoch(epoch)`, if it has one. With a `seed`, seeds the global
    generators for each epoch.

    Raises ConfigError if an epoch has no sample, or not as many as `len()` returns.
    """
    size = length(dataset)
    if size == 0:
        raise ConfigError(_empty(dataset, 0))
    epoch, skip = divmod(position, size) if size else (0, position)
    while True:
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        if seed is not None:
            seed_host(int(mix(seed, epoch)[0]))
        count = 0
        for sample in dataset:
            count += 1
            if count > skip:
                yield sample
        if count == 0:
            raise ConfigError(_empty(dataset, epoch))
        if size is not None and count != size:
            raise ConfigError(
                f"data.dataset={type(dataset).__name__}: epoch {epoch} gave {count} samples where"
                f" len() says {size}, so a resume would not find its place; make them agree or"
                " define no __len__."
            )
        epoch, skip = epoch + 1, max(0, skip - count)


def _empty(dataset: object, epoch: int) -> str:
    return (
        f"data.dataset={type(dataset).__name__}: epoch {epoch} gave no sample; each iter() of it"
        " must begin a new pass over at least one."
    )


@dataclass(frozen=True)
class Share:
    """The micro-batches of a rank: the ones numbered `local` of each `count`."""

    local: Sequence[int]
    count: int

    def number(self, turn: int) -> int:
        """The number of this rank's micro-batch at a turn, counted over all ranks."""
        rounds, at = divmod(turn, len(self.local))
        return rounds * self.count + self.local[at]

    def numbers(self) -> Iterator[int]:
        return map(self.number, count())


class TrainingStream:
    """This rank's micro-batches of a stream, without end, from a global sample position on."""

    def __init__(
        self,
        dataset: Any,
        collate: Collate,
        position: int,
        micro_batch_size: int,
        share: Share,
        seed: int | None,
    ):
        self.dataset = dataset
        self.collate = collate
        self.position = position
        self.size = micro_batch_size
        self.share = share
        self.seed = seed

    def __iter__(self) -> Iterator[Any]:
        draw, aside = _randomness(self.seed)
        first = self.position + self.share.number(0) * self.size
        samples = stream_samples(self.dataset, self.seed, first)
        read = self.share.number(0)
        for number in self.share.numbers():
            skip, read = (number - read) * self.size, number + 1
            batch = draw(lambda: list(islice(samples, skip, skip + self.size)))  # noqa: B023 - called at once
            yield aside(lambda: self.collate(batch))  # noqa: B023


class EvaluationStream:
    """This rank's batches of one pass over a stream.

    See `launcher.data.loader.evaluation_loader`.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Collate,
        batch_size: int,
        rank: int,
        world_size: int,
        seed: int | None,
        max_samples: int | None = None,
        has_chunks: bool = False,
    ):
        self.dataset = dataset
        self.collate = collate
        self.batch_size = batch_size
        self.has_chunks = has_chunks
        self.full = batch_size * world_size
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.max_samples = max_samples

    def __iter__(self) -> Iterator[Any]:
        return self._chunks() if self.has_chunks else self._shares()

    def _chunks(self) -> Iterator[tuple[int, Any]]:
        draw, aside = _randomness(self.seed)
        samples = self._samples()
        first = 0
        while read := draw(lambda: list(islice(samples, self.full))):
            chunk_index = self.rank if self.rank * self.batch_size < len(read) else 0
            start = chunk_index * self.batch_size
            chunk = read[start : start + self.batch_size]
            yield first + chunk_index, aside(lambda: self.collate(chunk))  # noqa: B023 - called at once
            first += self.world_size

    def _shares(self) -> Iterator[Any]:
        draw, aside = _randomness(self.seed)
        samples = self._samples()
        chunk: list[Any] = []
        ended = False
        while not ended:
            # Read one sample per rank ahead, so that the last chunk has at least one for each.
            wanted = self.full + self.world_size - len(chunk)
            read = draw(lambda: list(islice(samples, wanted)))  # noqa: B023 - called at once
            chunk += read
            ended = len(read) < wanted
            count = len(chunk) if ended else self.full
            if count < self.world_size:
                raise too_few(count, self.world_size)
            start, stop = share(count, self.rank, self.world_size)
            kept = chunk[start:stop]
            del chunk[:count]
            yield aside(lambda: self.collate(kept))  # noqa: B023

    def _samples(self) -> Iterator[Any]:
        if self.seed is not None:
            seed_host(int(mix(self.seed, 0)[0]))
        yield from islice(self.dataset, self.max_samples)


def _randomness(seed: int | None) -> tuple[Run, Run]:
    """Return the functions that call the stream's code and the collate function.

    If seeded, they have private generators.

    A rank collates only its own samples, so collating must not advance the generators of the
    stream: every rank reads the same stream.
    """
    if seed is None:
        return _call, _call
    generators = PrivateGenerators()
    return generators.run, generators.peek


def _call(function: Callable[[], object]) -> Any:
    return function()


def share(count: int, rank: int, world_size: int) -> tuple[int, int]:
    """This rank's part [start, stop) of `count` samples; the parts differ by at most one sample."""
    return count * rank // world_size, count * (rank + 1) // world_size


def too_few(count: int, world_size: int) -> ConfigError:
    """The error for a validation set that cannot give each rank one sample."""
    return ConfigError(
        f"data: the validation set holds {count} samples, fewer than the {world_size} ranks; hold"
        " out more or switch hooks.evaluation off."
    )
