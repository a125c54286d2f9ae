"""A user's data under torch's DataLoader and ours: resumes, epochs, states and errors."""

import logging
import multiprocessing
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
)
from torch.utils.data.distributed import DistributedSampler

from launcher import BaseHook, CheckpointingHook
from launcher.data.custom import CustomData
from launcher.data.evaluation_loader import EvaluationLoader
from launcher.data.loader import ResumableLoader
from launcher.data.mixture_dataset import Mixture
from launcher.data.user_dataloader import resumable
from launcher.errors import ConfigError, TrainingError
from support.toy import Toy

pytestmark = pytest.mark.slow

SIZE, STEPS = 10, 7


class Rows(Dataset[torch.Tensor]):
    """Samples [index, epoch, draw]; `loaded` are the indices that this process has loaded."""

    def __init__(self, size: int = SIZE) -> None:
        self.size, self.epoch, self.rng = size, -1, np.random.default_rng(0)
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loaded.append(index)
        return torch.tensor([float(index), float(self.epoch), self.draw()])

    def draw(self) -> float:
        return 0.0


class Noisy(Rows):
    def draw(self) -> float:
        return float(torch.rand(()))


class Told(Rows):
    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Stateful(Rows):
    """Draws by a generator of its own."""

    def draw(self) -> float:
        return float(self.rng.random())

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]


class Both(Stateful):
    """Begins anew at each epoch, and then draws as it is read."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.rng = epoch, np.random.default_rng(epoch)


class Drawn(Sampler[int]):
    """An order by a numpy generator that is the sampler's own, and by the global one."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(5)

    def __iter__(self) -> Iterator[int]:
        yield from ((self.rng.permutation(SIZE) + np.random.randint(SIZE)) % SIZE).tolist()

    def __len__(self) -> int:
        return SIZE


class Counts(Drawn):
    """Another order in each epoch, which it counts itself."""

    def __init__(self) -> None:
        self.epochs = 0

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        yield from np.random.default_rng(self.epochs).permutation(SIZE).tolist()


class Lazy(Drawn):
    """Draws as it goes."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(SIZE):
            yield int(torch.randint(SIZE, ()))


class Listed(Drawn):
    """Shuffles a list in place."""

    def __init__(self) -> None:
        self.order, self.rng = list(range(SIZE)), np.random.default_rng(3)

    def __iter__(self) -> Iterator[int]:
        self.rng.shuffle(self.order)
        yield from self.order


class StatefulListed(Listed):
    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order = state["order"]


class Positioned(Drawn):
    """Knows its position, as torchdata's StatefulDistributedSampler does."""

    def __init__(self) -> None:
        self.yielded, self.next, self.begun = 0, 0, [0]

    def __iter__(self) -> Iterator[int]:
        first, self.next = self.next, 0
        self.begun = [self.begun[0] + (first == 0)]
        order = np.random.default_rng(self.begun[0]).permutation(SIZE).tolist()
        for self.yielded in range(first + 1, SIZE + 1):
            yield order[self.yielded - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"yielded": self.yielded, "begun": self.begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next, self.begun = state["yielded"], state["begun"]


class Lists(Listed):
    """A batch sampler with batches of three."""

    def __iter__(self) -> Any:
        self.rng.shuffle(self.order)
        yield from (self.order[at : at + 3] for at in range(0, SIZE, 3))

    def __len__(self) -> int:
        return 4


class StatefulLists(StatefulListed):
    __iter__, __len__ = Lists.__iter__, Lists.__len__


class Shard:
    """A batch sampler over another one, which is no `Sampler`."""

    def __init__(self, base_sampler: Any) -> None:
        self.base_sampler = base_sampler

    def __iter__(self) -> Iterator[Any]:
        return iter(self.base_sampler)

    def __len__(self) -> int:
        return len(self.base_sampler)


class Shuffled:
    """Batches of three, in an order by the epoch that it is told."""

    def __init__(self) -> None:
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        order = np.random.default_rng(self.epoch + 1).permutation(SIZE).tolist()
        yield from (order[at : at + 3] for at in range(0, SIZE, 3))

    def __len__(self) -> int:
        return 4


class Budget(Shuffled):
    """Batches of other sizes in each epoch, and so another number of them."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = self.fill(0)

    def set_epoch(self, epoch: int) -> None:
        self.batches = self.fill(epoch)

    def fill(self, epoch: int) -> list[list[int]]:
        rng = np.random.default_rng(epoch)
        cuts = sorted({*rng.integers(1, SIZE, 1 + epoch % 4).tolist()})
        order = rng.permutation(SIZE).tolist()
        return [order[a:b] for a, b in zip([0, *cuts], [*cuts, SIZE], strict=True)]

    def __iter__(self) -> Iterator[Any]:
        yield from self.batches

    def __len__(self) -> int:
        return len(self.batches)


class BudgetOfCount(Budget):
    """Fills its batches when it begins, in an epoch that it counts itself."""

    set_epoch = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        self.batches = self.fill(self.epoch)
        yield from self.batches


class BudgetOfDraws(BudgetOfCount):
    """Fills its batches by the global generator, and counts nothing."""

    def __iter__(self) -> Iterator[Any]:
        self.batches = self.fill(int(torch.randint(100, ())))
        yield from self.batches


class Collate:
    """Adds a random number of its own, and the number of its calls."""

    def __init__(self, rng: Any = None) -> None:
        self.rng, self.calls = rng or np.random.default_rng(4), 0

    def __call__(self, samples: list[torch.Tensor]) -> torch.Tensor:
        self.calls += 1
        batch = torch.stack(samples)
        batch[:, 2] += self.rng.random() + self.calls
        return batch


class StatefulCollate(Collate):
    """Has a list, which is neither a generator nor a number."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[float] = []

    def __call__(self, samples: list[torch.Tensor]) -> torch.Tensor:
        self.numbers.append(self.rng.random())
        return torch.stack(samples) + torch.tensor([0, 0, sum(self.numbers)])

    def state_dict(self) -> dict[str, Any]:
        return {"numbers": self.numbers, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.numbers, self.rng.bit_generator.state = state["numbers"], state["rng"]


def collate_with(samples: list[torch.Tensor], rng: random.Random) -> torch.Tensor:
    return torch.stack(samples) + torch.tensor([0, 0, rng.random()])


def half(dataset: Any) -> Any:
    return Subset(dataset, range(SIZE))


def chain() -> Any:
    """Datasets inside others, one of them twice."""
    shared = Both(2 * SIZE)
    rest = Subset(shared, range(7, SIZE))
    return ConcatDataset([Stateful(3), Subset(Subset(shared, range(4)), range(4)), rest])


class StatefulLoader(DataLoader[Any]):
    """Keeps its own position, as torchdata's StatefulDataLoader does."""

    def __init__(self, num_workers: int = 0):
        generator = torch.Generator().manual_seed(7)
        super().__init__(Rows(), 4, shuffle=True, generator=generator, num_workers=num_workers)
        self.position, self.resumed_at = 0, 0
        self.began = self.generator.get_state()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        first, self.resumed_at = self.resumed_at, 0
        self.began = self.generator.get_state()
        for number, batch in enumerate(super().__iter__()):
            self.position = number + 1
            if number >= first:
                yield batch

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "began": self.began}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.resumed_at = state["position"]
        self.generator.set_state(state["began"])


class Watch(BaseHook):
    """Notes the batches of each step, and the epochs that begin; kills training after a step."""

    def __init__(self, stop: int | None) -> None:
        self.stop, self.batches, self.epochs = stop, [], {}

    def on_epoch_start(self, trainer: Any) -> None:
        self.epochs[trainer.step] = trainer.state.epoch

    def on_before_step(self, trainer: Any) -> None:
        if self.stop is not None and trainer.step > self.stop:
            raise Killed

    def on_batch(self, trainer: Any, batch: torch.Tensor) -> None:
        self.batches.append(batch.tolist())


class Killed(Exception):
    pass


class OnRows(Toy):
    def forward(self, input: torch.Tensor) -> Any:
        return super().forward(input[..., ::2] / SIZE)


def train(
    folder: Path, loader: Any, stops: tuple[int, ...] = (), max_steps: int = STEPS, **settings: Any
) -> Any:
    """Train in as many attempts as there are stops, each with another loader and random state."""
    batches, epochs, trainer = [], {}, None
    for number, stop in enumerate([*stops, None]):
        torch.manual_seed(number)
        np.random.seed(number)
        watch, data = Watch(stop), loader()
        hooks = [CheckpointingHook(stop or max_steps, asynchronous=False), watch]
        trainer = OnRows(hooks, max_steps, folder, data, **settings)
        try:
            trainer.train()
        except Killed:
            pass
        # Otherwise the collection of the loader would wait five seconds for each of them.
        for worker in multiprocessing.active_children():
            worker.terminate()
        if type(data) is DataLoader and isinstance(data.dataset, Rows) and not data.num_workers:
            assert data.dataset.loaded == rows_of(watch.batches)[:, 0].tolist(), "none is dropped"
        batches += watch.batches
        epochs |= watch.epochs
    assert trainer is not None
    return batches, epochs, [p.tolist() for p in trainer.model.parameters()]


def rows_of(batches: list[Any]) -> np.ndarray:
    return np.array([row for batch in batches for row in np.atleast_2d(batch)])


def ours(dataset: Any, **settings: Any) -> ResumableLoader:
    return ResumableLoader(dataset, seed=5, micro_batch_size=4, **settings)


def mixed(*datasets: Any) -> Mixture:
    named = {str(number): dataset for number, dataset in enumerate(datasets)}
    return Mixture(named, [(0, dict.fromkeys(named, 1.0))], "repeat")


EXACT: dict[str, Callable[[], Any]] = {
    "shuffled": lambda: DataLoader(Noisy(), 4, shuffle=True),
    "without batches": lambda: DataLoader(Noisy(), batch_size=None, shuffle=True),
    "with replacement": lambda: DataLoader(
        Noisy(),
        4,
        sampler=RandomSampler(
            range(SIZE), True, num_samples=40, generator=torch.Generator().manual_seed(3)
        ),
    ),
    "numpy": lambda: DataLoader(Noisy(), 4, sampler=Drawn()),
    "counts its epochs": lambda: DataLoader(Noisy(), 4, sampler=Counts()),
    "draws as it goes": lambda: DataLoader(Noisy(), 4, sampler=Lazy()),
    "distributed batch_sampler": lambda: DataLoader(
        Noisy(), batch_sampler=BatchSampler(DistributedSampler(range(SIZE), 2, 1), 2, False)
    ),
    "2 workers": lambda: DataLoader(Rows(), 4, shuffle=True, num_workers=2),
    "a persistent worker": lambda: DataLoader(
        Rows(), 4, shuffle=True, num_workers=1, persistent_workers=True
    ),
    "a persistent worker, with epochs": lambda: DataLoader(
        Told(), 4, num_workers=1, persistent_workers=True
    ),
    "a loader with a state": StatefulLoader,
    "sampler": lambda: DataLoader(Rows(), 4, sampler=StatefulListed()),
    "sampler, a worker": lambda: DataLoader(Rows(), 4, sampler=StatefulListed(), num_workers=1),
    "sampler that knows its position": lambda: DataLoader(Rows(), 4, sampler=Positioned()),
    "batch sampler": lambda: DataLoader(Rows(), batch_sampler=StatefulLists()),
    "sampler inside": lambda: DataLoader(
        Rows(), batch_sampler=BatchSampler(StatefulListed(), 3, False)
    ),
    "dataset": lambda: DataLoader(Stateful(), 4, shuffle=True),
    "dataset with epochs": lambda: DataLoader(Both(), 4, shuffle=True),
    "dataset, our loader": lambda: ours(Stateful()),
    "dataset with epochs, our loader": lambda: ours(Both()),
    "our loader, 2 workers, with epochs": lambda: ours(Told(), num_workers=2),
    "dataset with epochs, seeded samples": lambda: ours(Both(), seed_samples=True),
    "mixture": lambda: ours(mixed(Both(), Told(5))),
    "Subset": lambda: DataLoader(half(Stateful()), 4, shuffle=True),
    "Subset with epochs": lambda: DataLoader(half(Both()), 4, shuffle=True),
    "ConcatDataset": lambda: DataLoader(chain(), 4, shuffle=True),
    "Subset with epochs, our loader": lambda: ours(half(Both())),
    "Subset with epochs, our loader, 2 workers": lambda: ours(half(Told()), num_workers=2),
    "ConcatDataset, our loader": lambda: ours(chain()),
    "mixture of parts": lambda: ours(mixed(half(Both()), chain())),
    "sampler in a sampler": lambda: DataLoader(Rows(), batch_sampler=Shard(Shuffled())),
    "sampler in a sampler, stateful": lambda: DataLoader(
        Rows(), batch_sampler=Shard(BatchSampler(StatefulListed(), 3, False))
    ),
    "batches by epoch": lambda: DataLoader(Rows(), batch_sampler=Budget()),
    "batches by epoch, a worker": lambda: DataLoader(Rows(), batch_sampler=Budget(), num_workers=1),
    "batches by a count": lambda: DataLoader(Rows(), batch_sampler=BudgetOfCount()),
    "batches by draws": lambda: DataLoader(Noisy(), batch_sampler=BudgetOfDraws()),
    "collate": lambda: DataLoader(Rows(), 4, shuffle=True, collate_fn=Collate()),
    "collate, a method": lambda: DataLoader(Rows(), 4, collate_fn=Collate().__call__),
    "collate, partial": lambda: DataLoader(
        Rows(), 4, collate_fn=partial(collate_with, rng=random.Random(3))
    ),
    "collate, stateful": lambda: DataLoader(Stateful(), 4, collate_fn=StatefulCollate()),
    "collate, our loader": lambda: ours(Rows(), collate_fn=Collate(np.random.RandomState(3))),
    "collate, our loader, seeded": lambda: ours(
        half(Both()), collate_fn=StatefulCollate(), seed_samples=True
    ),
}


@pytest.mark.parametrize("kind", [Collate, StatefulCollate])
def test_evaluations_are_equal_and_leave_the_collate_function_of_training(kind):
    collate = kind()
    alone = iter(ours(Rows(), collate_fn=kind()))
    training = iter(ours(Rows(), collate_fn=collate))
    passes = EvaluationLoader(half(Stateful()), 4, collate_fn=collate)
    whole = [batch.tolist() for batch in passes]
    assert next(training).tolist() == next(alone).tolist()
    assert [batch.tolist() for batch in passes] == whole
    assert next(training).tolist() == next(alone).tolist()


@pytest.mark.parametrize("stop", range(1, 12, 2))
@pytest.mark.parametrize("kind", [Budget, BudgetOfCount, BudgetOfDraws])
def test_an_epoch_with_another_number_of_batches_resumes_at_each_step(kind, stop, tmp_path, caplog):
    def loader() -> Any:
        return DataLoader(Noisy(), batch_sampler=kind())

    expected = train(tmp_path / "whole", loader, max_steps=12)
    assert train(tmp_path / "parts", loader, (stop,), max_steps=12) == expected
    assert "has changed" not in caplog.text


@pytest.mark.parametrize("name", EXACT)
def test_a_resumed_run_equals_an_uninterrupted_one(name, tmp_path, caplog):
    loader = EXACT[name]
    expected = train(tmp_path / "whole", loader)
    assert "depends on something" not in caplog.text
    # The first attempt ends within an epoch, and the second one, most often, at the end of one.
    stops = (5,) if "worker" in name else (2, 6)
    assert train(tmp_path / "parts", loader, stops) == expected
    batches, epochs, _ = expected
    assert len(batches) == STEPS
    if not name.startswith("batches by"):
        assert list(epochs.values()) == list(range(len(epochs)))
    rows = rows_of(batches)
    if "with epochs" in name:
        assert rows[:, 1].tolist() == [position // SIZE for position in range(len(rows))]
    if name == "sampler in a sampler":
        assert rows[:10, 0].tolist() != rows[10:20, 0].tolist(), "each epoch has its order"
    if name == "mixture":
        # Each source repeats its samples in its next epoch.
        assert len({tuple(row) for row in rows[:12]}) > 5 and rows[:, 1].max() >= 2


def test_the_state_after_a_resume_at_the_second_batch_is_that_of_one_run():
    loaders = (DataLoader(Rows(), 4, sampler=Counts()) for _ in range(2))
    whole, resumed = (resumable(loader, logging.getLogger()) for loader in loaders)
    batches = iter(whole)
    next(batches)
    resumed.load_state_dict(deepcopy(whole.state_dict()))
    assert len(list(resumed)) == len(list(batches)) == 2
    assert str(resumed.state_dict()) == str(whole.state_dict())


def test_accumulation_over_the_end_of_an_epoch(tmp_path):
    loader, settings = EXACT["shuffled"], {"gradient_accumulation_steps": 2}
    expected = train(tmp_path / "whole", loader, **settings)
    assert train(tmp_path / "parts", loader, (2,), **settings) == expected


def test_another_loader_starts_the_epoch_again(tmp_path, caplog):
    loaders = iter([DataLoader(Rows(), 4), DataLoader(Rows(), 5)])
    batches, _, _ = train(tmp_path, lambda: next(loaders), (2,))
    assert "from batches=3 to 2" in caplog.text
    assert [row[0] for row in batches[2]] == [0, 1, 2, 3, 4]


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.ones(40, 3)


class OwnIteration(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


def of_torchdata(dataset: Any, **settings: Any) -> Any:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    return stateful.StatefulDataLoader(dataset, 4, **settings)


class Hiding:
    """A sampler, or a dataset, over another one that no name and no class tells."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


class Untyped:
    """A dataset that is not derived from torch's, with a state and `set_epoch`."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(3)

    def set_epoch(self, epoch: int) -> None: ...
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


NOT_REPEATED = "draws in a worker are not repeated"
GLOBAL = "The sampler draws from the global generators"
NO_COLLATE = "the state of collate_fn (Collate) is not in a checkpoint"
NOT_KEPT = "the state of the dataset (Stateful.state_dict) is not in a checkpoint"
PERSISTENT = {"num_workers": 1, "persistent_workers": True}
NOTICES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "collate, a worker": (
        lambda: DataLoader(Rows(), 4, collate_fn=Collate(), num_workers=1),
        [NOT_REPEATED, NO_COLLATE],
    ),
    "collate, a worker, our loader": (
        lambda: ours(Rows(), collate_fn=Collate(), num_workers=1),
        [NO_COLLATE],
    ),
    "collate, a stream, our loader": (
        lambda: ours(Stream(), collate_fn=Collate()),
        ["since the data are a stream"],
    ),
    "Subset, a worker": (
        lambda: DataLoader(half(Stateful()), 4, num_workers=1),
        [NOT_KEPT, NOT_REPEATED],
    ),
    "a hidden sampler": (
        lambda: DataLoader(Rows(), batch_sampler=Hiding(Shuffled())),
        ["Hiding.inner (Shuffled) has set_epoch, which"],
    ),
    "a hidden dataset": (
        lambda: DataLoader(Hiding(Untyped()), 4),  # type: ignore[arg-type]
        [f"Hiding.inner (Untyped) has {name}, which" for name in ("set_epoch", "state_dict")],
    ),
    "a hidden dataset, our loader": (
        lambda: ours(mixed(Rows(), Hiding(Untyped()))),
        [f"Hiding.inner (Untyped) has {name}, which" for name in ("set_epoch", "state_dict")],
    ),
    "sampler": (lambda: DataLoader(Rows(), 4, sampler=Listed()), ["The order of BatchSampler"]),
    "batch sampler": (lambda: DataLoader(Rows(), batch_sampler=Lists()), ["The order of Lists"]),
    "dataset, a worker": (
        lambda: DataLoader(Stateful(), 4, num_workers=1),
        [NOT_KEPT, NOT_REPEATED],
    ),
    "dataset, a worker, our loader": (lambda: ours(Stateful(), num_workers=1), [NOT_KEPT]),
    "a loader with a state": (partial(StatefulLoader, num_workers=1), [NOT_REPEATED]),
    "lazy, a worker": (
        lambda: DataLoader(Rows(), 4, sampler=Lazy(), num_workers=1),
        [NOT_REPEATED, GLOBAL],
    ),
    "stream": (lambda: DataLoader(Stream(), 4), ["its dataset is iterable"]),
    "own iteration": (lambda: OwnIteration(Rows(), 4), ["OwnIteration is not a plain DataLoader"]),
    "out of order": (
        lambda: DataLoader(Rows(), 4, num_workers=1, in_order=False),
        ["in_order=False"],
    ),
    "list": (lambda: [torch.ones(2, 3)] * 20, ["list is not a plain DataLoader"]),
    "torchdata, a stream": (
        lambda: of_torchdata(Stream(), **PERSISTENT),
        [NOT_REPEATED, "over a stream: after a resume"],
    ),
    "torchdata, with epochs": (
        lambda: of_torchdata(Told(), **PERSISTENT),
        [NOT_REPEATED, "do not see the dataset's set_epoch"],
    ),
    "torchdata, without workers": (lambda: of_torchdata(Told()), []),
}
TEXTS = {text for _, texts in NOTICES.values() for text in texts}


@pytest.mark.parametrize("name", NOTICES)
def test_what_a_resume_does_not_repeat_is_said(name, tmp_path, caplog):
    loader, texts = NOTICES[name]
    with caplog.at_level("INFO"):
        train(tmp_path, loader, (2,), max_steps=3)
    counts = {text: caplog.text.count(text) for text in TEXTS}
    assert {text for text, count in counts.items() if count} == set(texts)
    assert max(counts.values()) <= 2, "once in each attempt"


class Collated(Told):
    def get_batch(self, indices: np.ndarray) -> torch.Tensor:
        return torch.stack([self[int(index)] for index in indices])


class Items(Told):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("kind", [Collated, Items])
def test_a_batch_over_two_epochs_has_the_samples_of_both(kind):
    batches = iter(ours(kind()))
    rows = torch.cat([next(batches) for _ in range(5)])
    assert rows[:, 1].tolist() == [position // SIZE for position in range(20)]


class Faulty(Rows):
    def __init__(self, fault: Any) -> None:
        super().__init__()
        self.fault = fault

    def __getitem__(self, index: int) -> Any:
        if index != 3:
            return torch.zeros(4), index
        if isinstance(self.fault, Exception):
            raise self.fault
        return self.fault


ERRORS = [
    (None, r"^data: Faulty\[3\] returned None"),
    ((torch.zeros(5), 3), r"^data: Faulty\[3\] is \(Tensor \[5\], int\), and Faulty\[0\] is \(Te"),
    ((torch.zeros(4), None), r"^data: Faulty\[3\] is \(Tensor \[4\], None\), and Faulty\[0\] is"),
]


@pytest.mark.parametrize(
    ("fault", "message", "num_workers"), [*((*error, 0) for error in ERRORS), (*ERRORS[1], 1)]
)
def test_samples_that_make_no_batch_are_named(fault, message, num_workers):
    data = CustomData(
        dataset=Faulty(fault), val_dataset=Faulty(fault), batch_size=4, shuffle=False,
        num_workers=num_workers,
    )  # fmt: skip
    for loader in (data.train_loader(seed=0), data.val_loader()):
        with pytest.raises(ConfigError, match=message):
            next(iter(loader))  # type: ignore[arg-type]


class Once:
    """An iterator in the place of a loader."""

    def __init__(self, count: int) -> None:
        self.left = iter([torch.zeros(2, 3)] * count)

    def __iter__(self) -> Any:
        return self.left


@pytest.mark.parametrize(
    ("count", "message"),
    [(0, "its dataset is empty"), (2, "no batch in epoch 1, and had some before; each iter")],
)
def test_a_loader_without_a_further_batch(count, message, tmp_path):
    with pytest.raises(TrainingError, match=message):
        train(tmp_path, lambda: Once(count))
