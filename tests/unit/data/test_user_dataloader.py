import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
)
from torch.utils.data.distributed import DistributedSampler

from launcher import BaseHook, CheckpointingHook
from launcher.data.user_dataloader import resumable
from support.toy import Toy

pytestmark = pytest.mark.slow

SIZE, STEPS = 10, 9


class Numbers(Dataset[torch.Tensor]):
    """Samples [index, noise]; `loaded` are the indices that this process has loaded."""

    def __init__(self, noise: bool = False):
        self.noise = noise
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loaded.append(index)
        return torch.tensor([float(index), float(torch.rand(())) if self.noise else 0.0])


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


def numbered(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


LOADERS: dict[str, Callable[[Any], DataLoader[Any]]] = {
    "in order": lambda data: DataLoader(data, 4),
    "shuffled": lambda data: DataLoader(data, 4, shuffle=True),
    "batch_sampler": lambda data: DataLoader(
        data, batch_sampler=BatchSampler(RandomSampler(data), 3, False)
    ),
    "without batches": lambda data: DataLoader(data, batch_size=None, shuffle=True),
    "with replacement": lambda data: DataLoader(
        data, 4, sampler=RandomSampler(data, True, num_samples=40, generator=numbered(3))
    ),
    "numpy": lambda data: DataLoader(data, 4, sampler=Drawn()),
    "counts its epochs": lambda data: DataLoader(data, 4, sampler=Counts()),
    "draws as it goes": lambda data: DataLoader(data, 4, sampler=Lazy()),
    "distributed batch_sampler": lambda data: DataLoader(
        data, batch_sampler=BatchSampler(DistributedSampler(data, 2, 1), 2, False)
    ),
    "2 workers": lambda data: DataLoader(data, 4, shuffle=True, num_workers=2),
    "a persistent worker, global generator": lambda data: DataLoader(
        data, 4, shuffle=True, num_workers=1, persistent_workers=True
    ),
}


class Killed(Exception):
    pass


class Witness(BaseHook):
    """Notes the batches of each step, and kills training at one of them."""

    def __init__(self, batches: dict[int, list[Any]], kill_at: int = 0):
        self.batches, self.kill_at = batches, kill_at

    def on_before_step(self, trainer: Any) -> None:
        self.batches[trainer.step] = []
        if trainer.step == self.kill_at:
            raise Killed

    def on_batch(self, trainer: Any, batch: torch.Tensor) -> None:
        self.batches[trainer.step].append(batch.tolist())


class OnNumbers(Toy):
    def forward(self, input: torch.Tensor) -> Any:
        return super().forward(input / SIZE)


def train(
    folder: Path, loader: Any, batches: dict[int, list[Any]], kill_at: int = 0, **settings: Any
) -> Toy:
    """Train in this process, with a checkpoint just before the step at which it is killed."""
    saves = CheckpointingHook(kill_at - 1 if kill_at else STEPS, asynchronous=False)
    hooks = [saves, Witness(batches, kill_at)]
    # What a resumed process has drawn before must not count.
    seed = 99 if (folder / "checkpoints").exists() else 1
    torch.manual_seed(seed)
    np.random.seed(seed)
    trainer = OnNumbers(hooks, settings.pop("max_steps", STEPS), folder, loader, **settings)
    try:
        trainer.train()
    except Killed:
        pass
    return trainer


def weights(trainer: Toy) -> list[float]:
    return torch.cat([p.detach().reshape(-1) for p in trainer.model.parameters()]).tolist()


@pytest.mark.parametrize("name", LOADERS)
def test_a_resumed_run_equals_an_uninterrupted_one(name, tmp_path):
    def loader() -> tuple[Numbers, DataLoader[Any]]:
        data = Numbers(noise="worker" not in name)  # what workers draw cannot be repeated
        return data, LOADERS[name](data)

    expected: dict[int, list[Any]] = {}
    whole = train(tmp_path / "whole", loader()[1], expected)
    assert sum(map(len, expected.values())) == STEPS
    per_epoch = len(loader()[1])
    for kill_at in (2, min(per_epoch + 1, STEPS)) if "worker" not in name else (per_epoch + 3,):
        actual: dict[int, list[Any]] = {}
        folder = tmp_path / f"killed-{kill_at}"
        train(folder, loader()[1], actual, kill_at)
        data, again = loader()
        resumed = train(folder, again, actual)
        assert actual == expected, kill_at
        assert weights(resumed) == weights(whole)
        if again.num_workers == 0:  # nothing was loaded to be dropped
            batches = [batch for step in range(kill_at, STEPS + 1) for batch in actual[step]]
            assert data.loaded == [int(row[0]) for batch in batches for row in np.atleast_2d(batch)]


class Stateful(DataLoader[Any]):
    """Keeps its own position, as torchdata's StatefulDataLoader does."""

    def __init__(self, data: Numbers, num_workers: int = 0):
        super().__init__(data, 4, shuffle=True, generator=numbered(7), num_workers=num_workers)
        self.position, self.resumed_at = 0, 0
        self.began = self.generator.get_state()
        self.loaded_states = 0

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
        self.loaded_states += 1
        self.resumed_at = state["position"]
        self.generator.set_state(state["began"])


@pytest.mark.parametrize("kill_at", [2, 5])
def test_a_loader_with_a_state_of_its_own_is_used_as_it_is(kill_at, tmp_path):
    expected: dict[int, list[Any]] = {}
    whole = train(tmp_path / "whole", Stateful(Numbers()), expected)
    actual: dict[int, list[Any]] = {}
    train(tmp_path / "killed", Stateful(Numbers()), actual, kill_at)
    again = Stateful(Numbers())
    resumed = train(tmp_path / "killed", again, actual)
    assert (actual, weights(resumed)) == (expected, weights(whole))
    assert again.loaded_states == 1 and resumable(again, logging.getLogger()) is again


def test_accumulation_over_the_end_of_an_epoch(tmp_path):
    make = LOADERS["shuffled"]
    expected: dict[int, list[Any]] = {}
    actual: dict[int, list[Any]] = {}
    settings = {"gradient_accumulation_steps": 2, "max_steps": 6}
    whole = train(tmp_path / "whole", make(Numbers(True)), expected, **settings)
    train(tmp_path / "parts", make(Numbers(True)), actual, kill_at=3, **settings)
    resumed = train(tmp_path / "parts", make(Numbers(True)), actual, **settings)
    assert (actual, weights(resumed)) == (expected, weights(whole))


def test_another_loader_starts_the_epoch_again(tmp_path, caplog):
    actual: dict[int, list[Any]] = {}
    train(tmp_path, DataLoader(Numbers(), 4), actual, kill_at=3)
    with caplog.at_level("WARNING"):
        train(tmp_path, DataLoader(Numbers(), 5), actual)
    assert "from batches=3 to 2" in caplog.text
    assert [row[0] for row in actual[3][0]] == [0, 1, 2, 3, 4]


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.ones(20, 2)


class OwnIteration(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: DataLoader(Stream(), 4), "its dataset is iterable"),
        (lambda: OwnIteration(Numbers(), 4), "OwnIteration is not a plain DataLoader"),
        (lambda: DataLoader(Numbers(), 4, num_workers=1, in_order=False), "in_order=False"),
        (lambda: [torch.ones(2, 2)] * 20, "list is not a plain DataLoader"),
    ],
)
def test_loader_that_cannot_resume_exactly_is_reported_once(make, reason, tmp_path, caplog):
    train(tmp_path, make(), {}, kill_at=3)
    assert "data loader" not in caplog.text
    train(tmp_path, make(), {})
    assert [reason in text for text in caplog.messages if "data loader" in text] == [True]


@pytest.mark.parametrize(
    ("make", "notices"),
    [
        (partial(Stateful, num_workers=1), ["draws in a worker are not repeated"]),
        (
            partial(DataLoader, batch_size=4, sampler=Lazy(), num_workers=1),
            ["draws in a worker are not repeated", "The sampler draws from the global generators"],
        ),
    ],
)
def test_random_numbers_that_are_not_repeated_are_mentioned_at_the_resume(
    make: Callable[[Numbers], Any], notices: list[str], tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    train(tmp_path, make(Numbers()), {}, kill_at=3)
    caplog.clear()
    with caplog.at_level("INFO"):
        train(tmp_path, make(Numbers()), {})
    every = ("draws in a worker are not repeated", "The sampler draws from the global generators")
    assert [notice for notice in every if notice in caplog.text] == notices
