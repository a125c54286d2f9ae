"""A user's IterableDataset: exact order and resume for any number of workers, ranks and epochs.

With a `state_dict`, a resume reads nothing again.
"""

import random
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from launcher.data import ResumableLoader
from launcher.data.declared import has_state
from launcher.errors import ConfigError
from launcher.process.lanes import Lanes
from support import batches


class Stream(IterableDataset[Any]):
    """Numbers from 1, plus 100 for each epoch it is told of, with a draw from each global
    generator."""

    def __init__(self, size: int = 7):
        self.size, self.epoch = size, 0
        self.next, self.history = 0, [0]
        # The workers share it.
        self.read = torch.zeros(1, dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        self.next = 0
        yield from self.rest()

    def rest(self) -> Iterator[Any]:
        while self.next < self.size:
            self.next += 1
            self.history.append(self.next)
            self.read += 1
            draws = random.random(), np.random.rand(), torch.rand(()).item()
            yield 100 * self.epoch + self.next, *draws
        self.next = 0


class Sized(Stream):
    def __len__(self) -> int:
        return self.size


class Stateful(Stream):
    """It has a mutable state."""

    def __iter__(self) -> Iterator[Any]:
        return self.rest()

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, "history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next, self.history = state["next"], state["history"]


class Both(Stateful, Sized):
    pass


def take(loader: ResumableLoader, count: int) -> list[Any]:
    return [torch.stack(batch, 1).tolist() for batch in batches.take(loader, count)]


def loader(dataset: Any, rank: int = 0, world_size: int = 1, **options: Any) -> ResumableLoader:
    given = {"seed": 3, "micro_batch_size": 6 // world_size, "seed_samples": True} | options
    return ResumableLoader(dataset, rank=rank, world_size=world_size, **given)


def of_all(
    world_size: int, count: int, state: Any = None, kind: Any = Stateful, **options: Any
) -> tuple[Any, ...]:
    """Batches of six samples, taken by so many ranks; the state after them, the same on all; and
    the samples that a rank has read."""
    parts, states, reads = [], [], []
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


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [Stream, Sized])
def test_order_and_epochs(kind, num_workers):
    taken = take(loader(kind(5), micro_batch_size=2, num_workers=num_workers), 6)
    numbers = [[int(sample[0]) for sample in batch] for batch in taken]
    assert numbers == [[1, 2], [3, 4], [5, 101], [102, 103], [104, 105], [201, 202]]


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        *((Stream, 1, 1), (Stream, 2, 3), (Sized, 3, 1)),
        *((Stateful, 1, 2), (Stateful, 2, 3), (Stateful, 3, 1), (Both, 1, 1)),
    ],
)
def test_a_resume_equals_one_run_and_with_a_state_reads_nothing_again(kind, before, after):
    whole, _, _ = of_all(1, 9, kind=kind)
    for stop in (4, 7):
        first, state, _ = of_all(before, stop, kind=kind)
        rest, _, read = of_all(after, 9 - stop, state, kind=kind)
        assert first + rest == whole
        if has_state(kind()):
            # Six of seven: it stops in the middle of epochs and, after seven batches, at an end.
            assert state["stream"]["dataset"]["next"] == (6 * stop - 1) % 7 + 1
            assert read == 6 * (9 - stop)


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [(Stream, 2, 2), (Sized, 0, 2), (Stateful, 0, 2), (Stateful, 2, 0), (Stateful, 2, 2)],
)
def test_it_does_not_depend_on_workers(kind, before, after):
    whole, _, _ = of_all(1, 6, kind=kind)
    first, state, _ = of_all(1, 3, kind=kind, num_workers=before)
    rest, _, read = of_all(1, 3, state, kind=kind, num_workers=after)
    assert first + rest == whole
    # A worker reads two batches ahead.
    assert not has_state(kind()) or 18 <= read <= 18 + 6 * 2 * bool(after)


def test_training_sees_nothing_of_its_draws():
    drawn = []
    for seed in (3, 4):
        torch.manual_seed(5), random.seed(5), np.random.seed(5)
        taken = take(loader(Stream(), seed=seed), 6)
        drawn.append((torch.rand(1), random.random(), np.random.rand(), taken))
    assert drawn[0][:3] == drawn[1][:3] and drawn[0][3] != drawn[1][3]
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    assert drawn[0][:3] == (torch.rand(1), random.random(), np.random.rand())


def test_a_length_lets_it_jump_over_whole_epochs():
    dataset = Sized(5)
    take(loader(dataset, micro_batch_size=2, samples=5_000_002), 1)
    assert dataset.read == 4 and dataset.epoch == 1_000_000


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


def test_a_stream_that_is_read_again_is_logged(caplog):
    caplog.set_level("INFO")
    _, state, _ = of_all(1, 3, kind=Stream)
    assert not caplog.messages and "stream" not in state
    _, _, read = of_all(2, 2, state, kind=Stream)
    (message,) = caplog.messages
    assert message.startswith("Reading 18 samples of the stream again, since its dataset is not")
    assert read > 24
    # A checkpoint that was written before the dataset had a state.
    caplog.clear()
    of_all(1, 2, state)
    assert "18 samples of the stream again, since the checkpoint has no state" in caplog.text
    # Complete epochs are skipped, so there may be nothing to read.
    caplog.clear()
    of_all(1, 2, state | {"samples": 42}, kind=Both)
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
    assert has_state(Stateful()) and not has_state(Stream())


@pytest.mark.parametrize("dataset", [Stream(0), Sized(0)])
def test_an_empty_stream_is_an_error(dataset):
    with pytest.raises(ConfigError, match="epoch 0 gave no sample"):
        take(loader(dataset), 1)


def test_a_stream_that_ends_for_good_is_an_error():
    once = iter([1, 2, 3])

    class Once(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return once

    with pytest.raises(ConfigError, match="epoch 1 gave no sample"):
        batches.take(loader(Once(), micro_batch_size=2), 2)


def test_a_wrong_length_is_an_error():
    class Wrong(Stream):
        def __len__(self) -> int:
            return 4

    with pytest.raises(ConfigError, match=r"epoch 0 gave 5 samples where len\(\) says 4"):
        take(loader(Wrong(5), micro_batch_size=2), 3)
