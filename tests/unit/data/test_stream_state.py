"""Streams with `state_dict` and `load_state_dict`: a resume reads nothing again, and is exact for
any number of ranks, workers and epochs."""

import random
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from launcher.data import ResumableLoader
from launcher.data.iterable import has_state
from launcher.errors import ConfigError
from launcher.process.lanes import Lanes
from support import batches


class Stateful(IterableDataset[Any]):
    """Numbers with a draw from each global generator, and a mutable state."""

    def __init__(self, size: int = 7):
        self.size, self.epoch = size, 0
        self.next, self.history = 0, [0]
        # The workers share it.
        self.read = torch.zeros(1, dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        while self.next < self.size:
            self.next += 1
            self.history.append(self.next)
            self.read += 1
            draws = random.random(), np.random.rand(), torch.rand(()).item()
            yield 100 * self.epoch + self.next, *draws
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, "history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next, self.history = state["next"], state["history"]


class Sized(Stateful):
    def __len__(self) -> int:
        return self.size


def take(loader: ResumableLoader, count: int) -> list[Any]:
    return [torch.stack(batch, 1).tolist() for batch in batches.take(loader, count)]


def loader(dataset: Any, rank: int = 0, world_size: int = 1, **options: Any) -> ResumableLoader:
    given = {"seed": 3, "micro_batch_size": 6 // world_size, "seed_samples": True} | options
    return ResumableLoader(dataset, rank=rank, world_size=world_size, **given)


def of_all(world_size: int, count: int, state: Any = None, **options: Any) -> tuple[Any, ...]:
    """Batches of six samples, taken by so many ranks; the state after them, the same on all; and
    the samples that a rank has read."""
    parts, states, reads = [], [], []
    kind = options.pop("kind", Stateful)
    for rank in range(world_size):
        dataset = kind()
        one = loader(dataset, rank, world_size, **options)
        if state is not None:
            one.load_state_dict(state)
        parts.append(take(one, count))
        states.append(one.state_dict())
        reads.append(int(dataset.read))
    assert all(str(each) == str(states[0]) for each in states)
    return [list(chain(*each)) for each in zip(*parts, strict=True)], states[0], max(reads)


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [(Stateful, 1, 2), (Stateful, 2, 3), (Stateful, 3, 1), (Sized, 1, 1)],
)
def test_a_resume_reads_nothing_again(kind, before, after):
    whole, _, _ = of_all(1, 9, kind=kind)
    for stop in (4, 7):
        first, state, _ = of_all(before, stop, kind=kind)
        assert first == whole[:stop]
        # Six of seven: it stops in the middle of epochs and, after seven batches, at an end.
        assert state["stream"]["dataset"]["next"] == (6 * stop - 1) % 7 + 1
        rest, _, read = of_all(after, 9 - stop, state, kind=kind)
        assert rest == whole[stop:] and read == 6 * (9 - stop)


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 2)])
def test_it_does_not_depend_on_workers(before, after):
    whole, _, _ = of_all(1, 6)
    first, state, _ = of_all(1, 3, num_workers=before)
    rest, _, read = of_all(1, 3, state, num_workers=after)
    assert first + rest == whole
    # A worker reads two batches ahead.
    assert 18 <= read <= 18 + 6 * 2 * bool(after)


def test_lanes_share_it():
    def of_lanes(world_size: int, count: int, state: Any = None) -> tuple[Any, Any]:
        taken: dict[int, Any] = {}
        for rank in range(world_size):
            lanes = Lanes(4, seed=0, rank=rank, world_size=world_size)
            one = loader(Stateful(), rank, world_size, micro_batch_size=2, lanes=lanes)
            if state is not None:
                one.load_state_dict(state)
            for turn, batch in enumerate(take(one, count * len(lanes.local))):
                step, at = divmod(turn, len(lanes.local))
                taken[4 * step + lanes.local[at]] = batch
        return [taken[number] for number in sorted(taken)], one.state_dict()

    whole, _ = of_lanes(1, 5)
    for before, after in ((1, 2), (2, 4), (4, 1)):
        first, state = of_lanes(before, 2)
        assert first + of_lanes(after, 3, state)[0] == whole


def test_what_was_noted_for_a_rewind_is_a_position():
    one = loader(Stateful())
    taken = iter(one)
    next(taken)
    samples, state = one.samples, one.stream_state
    next(taken)
    one.samples, one.stream_state = samples, state
    assert one.state_dict()["stream"]["dataset"] == {"next": 6, "history": [0, 1, 2, 3, 4, 5, 6]}
    # Without the state of that position, the stream is read again.
    one.samples = 12
    assert "stream" not in one.state_dict()


class Replayed(IterableDataset[Any]):
    """The same samples, without a state."""

    def __init__(self) -> None:
        self.inner = Stateful()
        self.read = self.inner.read

    def __iter__(self) -> Iterator[Any]:
        self.inner.next = 0
        return iter(self.inner)


def test_another_stream_is_read_again_which_is_logged(caplog):
    caplog.set_level("INFO")
    whole, _, _ = of_all(1, 5, kind=Replayed)
    _, state, _ = of_all(1, 3, kind=Replayed)
    assert not caplog.messages and "stream" not in state
    rest, _, read = of_all(2, 2, state, kind=Replayed)
    assert rest == whole[3:] and read > 24
    (message,) = caplog.messages
    assert message.startswith("Reading 18 samples of the stream again, since its dataset is not")
    # A checkpoint that was written before the dataset had a state.
    caplog.clear()
    of_all(1, 2, state)
    assert "18 samples of the stream again, since the checkpoint has no state" in caplog.text
    # Complete epochs are skipped, so there may be nothing to read.
    caplog.clear()
    of_all(1, 2, state | {"samples": 42}, kind=Sized)
    assert not caplog.messages


def test_a_state_that_cannot_be_kept_is_an_error():
    class Open(Stateful):
        def state_dict(self) -> dict[str, Any]:
            return {"file": lambda: None}

    with pytest.raises(ConfigError, match=r"^data\.dataset=Open: its state_dict\(\) cannot"):
        take(loader(Open()), 1)


def test_hugging_face_streams_are_read_again():
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_dict({"a": [1, 2, 3]}).to_iterable_dataset()
    assert hasattr(stream, "load_state_dict") and not has_state(stream)
    assert has_state(Stateful()) and not has_state(Replayed())
