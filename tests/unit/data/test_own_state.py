"""States, epochs and errors of a user's data, under both interfaces."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler

from launcher import BaseHook, CheckpointingHook
from launcher.data.custom import CustomData
from launcher.data.loader import ResumableLoader
from launcher.data.mixture_dataset import Mixture
from launcher.errors import TrainingError
from support.toy import Toy

pytestmark = pytest.mark.slow

SIZE, STEPS = 10, 9


class Rows(Dataset[torch.Tensor]):
    """Samples [index, epoch, number drawn by a generator of the dataset's own]."""

    def __init__(self, size: int = SIZE) -> None:
        self.size, self.epoch, self.rng = size, -1, np.random.default_rng(0)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), float(self.epoch), 0.0])


class Told(Rows):
    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Drawing(Rows):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), float(self.epoch), float(self.rng.random())])


class Stateful(Drawing):
    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]


class Both(Stateful):
    """Begins anew at each epoch, and then draws as it is read."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.rng = epoch, np.random.default_rng(epoch)


class Listed(Sampler[int]):
    """Shuffles a list in place."""

    def __init__(self) -> None:
        self.order, self.rng = list(range(SIZE)), np.random.default_rng(3)

    def __iter__(self) -> Iterator[int]:
        self.rng.shuffle(self.order)
        yield from self.order

    def __len__(self) -> int:
        return SIZE


class StatefulListed(Listed):
    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order = state["order"]


class Positioned(Sampler[int]):
    """Knows its position, as torchdata's StatefulDistributedSampler does."""

    def __init__(self) -> None:
        self.yielded, self.next, self.begun = 0, 0, [0]

    def __iter__(self) -> Iterator[int]:
        first, self.next = self.next, 0
        self.begun = [self.begun[0] + (first == 0)]
        order = np.random.default_rng(self.begun[0]).permutation(SIZE).tolist()
        for self.yielded in range(first + 1, SIZE + 1):
            yield order[self.yielded - 1]

    def __len__(self) -> int:
        return SIZE

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


def ours(dataset: Any, **settings: Any) -> ResumableLoader:
    return ResumableLoader(dataset, seed=5, micro_batch_size=4, **settings)


def mixed(*datasets: Any) -> Mixture:
    named = {str(number): dataset for number, dataset in enumerate(datasets)}
    return Mixture(named, [(0, dict.fromkeys(named, 1.0))], "repeat")


EXACT: dict[str, Callable[[], Any]] = {
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
    "dataset, seeded samples": lambda: ours(Both(), seed_samples=True),
    "mixture": lambda: ours(mixed(Both(), Rows(7))),
}
FORGETTING: dict[str, tuple[Callable[[], Any], str]] = {
    "sampler": (lambda: DataLoader(Rows(), 4, sampler=Listed()), "The order of BatchSampler"),
    "batch sampler": (lambda: DataLoader(Rows(), batch_sampler=Lists()), "The order of Lists"),
    "dataset, a worker": (
        lambda: DataLoader(Stateful(), 4, num_workers=1),
        "the state of the dataset (Stateful.state_dict) is not in a checkpoint",
    ),
    "dataset, a worker, our loader": (
        lambda: ours(Stateful(), num_workers=1),
        "the state of the dataset (Stateful.state_dict) is not in a checkpoint",
    ),
}


class Watch(BaseHook):
    """Notes the batches of each step, and the epochs that begin."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.epochs: list[tuple[int, int]] = []

    def on_epoch_start(self, trainer: Any) -> None:
        self.epochs.append((trainer.step, trainer.state.epoch))

    def on_batch(self, trainer: Any, batch: torch.Tensor) -> None:
        self.batches.append(batch.tolist())


class OnRows(Toy):
    def forward(self, input: torch.Tensor) -> Any:
        return super().forward(input[..., ::2] / SIZE)


def train(folder: Path, loader: Any, stops: tuple[int, ...] = (), **settings: Any) -> Any:
    """Train in as many attempts as there are stops, each with another loader and random state."""
    batches, epochs, trainer = [], [], None
    for number, stop in enumerate([*stops, None]):
        torch.manual_seed(number)
        watch = Watch()
        hooks = [CheckpointingHook(STEPS, asynchronous=False), watch]
        trainer = OnRows(hooks, STEPS, folder, loader(), pause_at=stop, **settings)
        trainer.train()
        batches += watch.batches
        epochs += watch.epochs
    assert trainer is not None
    return batches, epochs, [p.tolist() for p in trainer.model.parameters()]


@pytest.mark.parametrize("name", EXACT)
def test_state_of_its_own_is_restored(name, tmp_path, caplog):
    loader = EXACT[name]
    expected = train(tmp_path / "whole", loader)
    assert "depends on something" not in caplog.text
    assert train(tmp_path / "parts", loader, (2, 3, 8)) == expected


@pytest.mark.parametrize("name", FORGETTING)
def test_state_that_is_lost_is_named_at_the_start(name, tmp_path, caplog):
    loader, warning = FORGETTING[name]
    train(tmp_path, loader)
    assert caplog.text.count(warning) == 1


EPOCHS: dict[str, Callable[[], Any]] = {
    "in this process": lambda: DataLoader(Told(), 4, shuffle=True),
    "a persistent worker": lambda: DataLoader(Told(), 4, num_workers=1, persistent_workers=True),
    "sampler": lambda: DataLoader(Told(), 4, sampler=RandomSampler(range(SIZE))),
    "our loader": lambda: ours(Told()),
    "our loader, 2 workers": lambda: ours(Told(), num_workers=2),
    "our loader, seeded samples": lambda: ours(Told(), seed_samples=True),
    "mixture": lambda: ours(mixed(Told(), Told(5))),
}


@pytest.mark.parametrize("name", EPOCHS)
def test_a_sample_knows_its_epoch(name, tmp_path):
    batches, epochs, _ = train(tmp_path, EPOCHS[name], (2, 5))
    rows = np.array([row for batch in batches for row in np.atleast_2d(batch)])
    if name != "mixture":
        assert rows[:, 1].tolist() == [position // SIZE for position in range(len(rows))]
    else:
        # Each source repeats its samples in its next epoch.
        assert len({tuple(row) for row in rows[:12]}) > 5 and rows[:, 1].max() >= 2
    first_steps = dict(epochs)
    assert list(first_steps.values()) == list(range(len(first_steps)))


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
        with pytest.raises(TrainingError, match=message):
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


@pytest.mark.parametrize(
    ("dataset", "settings", "warning"),
    [
        ("stream", {"num_workers": 1, "persistent_workers": True}, "over a stream: after a resume"),
        ("told", {"num_workers": 1, "persistent_workers": True}, "do not see the dataset's set_ep"),
        ("told", {}, None),
    ],
)
def test_persistent_workers_of_another_loader(
    dataset: str, settings: dict[str, Any], warning: str | None, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    class Stream(torch.utils.data.IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            yield from torch.zeros(8, 3)

    data = Stream() if dataset == "stream" else Told()
    train(tmp_path, lambda: stateful.StatefulDataLoader(data, 4, **settings))
    assert (warning in caplog.text) if warning else "persistent workers" not in caplog.text
