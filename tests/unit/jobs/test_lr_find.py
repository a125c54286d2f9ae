"""The learning rate range test leaves no trace in the trainer, and suggests nothing where the loss
does not fall."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from launcher.jobs.lr_find import find_lr, suggestion
from support.toy import BAD, GOOD, Recorder, Toy


class Fits(Toy):
    """Learns a constant, so that the loss falls."""

    def forward(self, input: torch.Tensor) -> Any:
        return (self.model(input) - 3).pow(2).mean(), {}


def test_training_afterwards_is_as_without_it(tmp_path):
    trainers = []
    for tests in (True, False):
        recorder = Recorder()
        trainer = Fits([recorder], 4, tmp_path, batches=[GOOD, 2 * GOOD])
        trainer.build()
        torch.manual_seed(5)
        if tests:
            trainer.model.eval()
            result = find_lr(trainer, num_iterations=40, smoothing_factor=0.5)
            assert not trainer.model.training and trainer.hooks == [recorder] and trainer.step == 0
            assert trainer.optimizer.state_dict()["state"] == {}
            assert trainer.optimizer.param_groups[0]["lr"] == 0.1
            assert all(parameter.grad is None for parameter in trainer.model.parameters())
            assert result.lrs[0] == 1e-7 and result.suggested_lr in result.lrs
            assert 1e-4 < result.suggested_lr < 1 and recorder.records == []
            assert set(result.to_dict()) >= {"lrs", "losses", "suggested_lr"}
        trainer.train()
        trainers.append(trainer)
    for a, b in zip(*(trainer.model.parameters() for trainer in trainers), strict=True):
        assert torch.equal(a, b)


def test_nan_stops_it_without_a_suggestion(tmp_path):
    result = find_lr(Fits([], 1, tmp_path, batches=[GOOD] * 8 + [BAD]), num_iterations=30)
    assert len(result.losses) == 9 and result.suggested_lr is None
    assert result.stopped is not None and result.stopped.startswith("the loss was nan at lr=")


def test_divergence_stops_it(tmp_path):
    trainer = Fits([], 1, tmp_path, batches=[GOOD])
    result = find_lr(trainer, start_lr=1e-3, end_lr=1e4, num_iterations=60, smoothing_factor=1.0)
    assert result.stopped is not None and "more than 4 times the least" in result.stopped
    assert len(result.losses) < 60 and result.suggested_lr is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start_lr": 1.0, "end_lr": 0.1}, "needs 0 < start_lr < end_lr"),
        ({"num_iterations": 1}, "at least 2 iterations"),
        ({}, "its dataset is empty"),
    ],
)
def test_what_cannot_be_tested_is_rejected(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        find_lr(Fits([], 1, tmp_path, batches=[]), **options)


def test_the_suggestion_is_where_the_loss_falls_fastest():
    lrs = [10.0**k for k in range(-7, 1)]
    assert suggestion(lrs, [5, 5, 4.9, 3, 1, 0.9, 2, 9]) == 1e-4
    assert suggestion(lrs, [1, 2, 3, 4, 5, 6, 7, 8]) is None and suggestion([], []) is None


class Growing:
    """Samples that grow with each that is read."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read += 1
        return torch.full((2,), float(index + self.read))

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.read = state["read"]


def loaders() -> dict[str, Callable[[], Any]]:
    data = [torch.full((2,), float(number)) for number in range(8)]
    generator = lambda: torch.Generator().manual_seed(7)  # noqa: E731
    return {
        "shuffled": lambda: DataLoader(data, 2, shuffle=True),
        "own generator": lambda: DataLoader(data, 2, shuffle=True, generator=generator()),
        "stateful dataset": lambda: DataLoader(Growing(), 2),  # type: ignore[arg-type]
        "stateful": lambda: StatefulDataLoader(data, 2, shuffle=True),
    }


@pytest.mark.parametrize("name", loaders())
def test_loader_and_generators_are_as_before(name, tmp_path):
    states = []
    for tests in (True, False):
        torch.manual_seed(5)
        trainer = Fits([], 6, tmp_path, loaders()[name]())
        trainer.build()
        if tests:
            find_lr(trainer, num_iterations=7)
        before = torch.get_rng_state()
        trainer.train()
        states.append([before, torch.get_rng_state(), *trainer.model.parameters()])
    assert all(map(torch.equal, *states))
