"""An evaluation restores the mode of each module, and names what it changes."""

import logging
from typing import Any

import pytest
import torch
from torch import nn

from launcher import BaseHook, CheckpointingHook, EvaluationHook
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.rundir.folder import step_name
from support.toy import Toy


class Freeze(BaseHook):
    """Keeps the statistics of the norm from a step on."""

    def __init__(self, at: int):
        self.at = at

    def on_before_step(self, trainer: Any) -> None:
        if trainer.step == self.at:
            trainer.model[1].eval()


class Normed(Toy):
    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5), nn.Linear(2, 1))


def train(folder: Any, *stops: int, interval: int = 2, at: int = 2, end: int = 6) -> Normed:
    for stop in (*stops, end):
        hooks = [
            Freeze(at),
            EvaluationHook(interval, loader=lambda: [torch.ones(4, 2), torch.zeros(4, 2)]),
            CheckpointingHook(100),
        ]
        trainer = Normed(hooks, end, folder, pause_at=stop if stop < end else None)
        trainer.train()
    return trainer


@pytest.mark.parametrize("stops", [(1,), (2,), (3,), (3, 4)])
def test_a_mode_that_a_hook_sets_outlives_evaluations_and_resumes(tmp_path, stops):
    """The interval of evaluations is not part of a run's name."""
    whole = train(tmp_path / "whole")
    train(tmp_path / "parts", *stops)
    train(tmp_path / "often", interval=1)
    assert [module.training for module in whole.model] == [True, False, True, True]
    for name in ("parts", "often"):
        pairs = zip(train_state(tmp_path / "whole"), train_state(tmp_path / name), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def train_state(folder: Any) -> list[torch.Tensor]:
    """The tensors of the last checkpoint, by name."""
    stored = StoredCheckpoint(folder / "checkpoints" / step_name(6))
    return [stored.read(name) for name in sorted(stored.names())]


def test_a_part_that_the_constructor_left_in_evaluation_mode_is_named_once(tmp_path, caplog):
    class Loaded(Normed):
        def build_model(self) -> nn.Module:
            model = super().build_model()
            model[1].eval()
            return model

    for stop in (2, None):
        trainer = Loaded([CheckpointingHook(100)], 4, tmp_path, pause_at=stop)
        with caplog.at_level(logging.WARNING):
            trainer.train()
    assert all(module.training for module in trainer.model)
    (text,) = [record.getMessage() for record in caplog.records]
    assert "now in training mode, as by model.train(): 1." in text


def test_modes_are_kept_between_two_calls_of_train(tmp_path):
    trainer = Normed([Freeze(2)], 6, tmp_path, pause_at=3)
    trainer.train()
    trainer.model.eval()
    trainer.pause_at = None
    trainer.train()
    assert [module.training for module in trainer.model] == [True, False, True, True]


class Counting(Toy):
    def build_model(self) -> nn.Module:
        model: Any = super().build_model()
        model.register_buffer("seen", torch.zeros(()))
        return model

    def forward(self, input: torch.Tensor) -> Any:
        self.model.seen += 1  # type: ignore[operator]
        return super().forward(input)


class Renorming(Toy):
    def forward(self, input: torch.Tensor) -> Any:
        with torch.no_grad():
            self.model[0].weight.mul_(0.9)
        return super().forward(input)


@pytest.mark.parametrize(("kind", "name"), [(Counting, "seen"), (Renorming, "0.weight")])
def test_a_tensor_that_an_evaluation_changes_is_named_once(tmp_path, caplog, kind, name):
    hooks = [EvaluationHook(1, loader=lambda: [torch.ones(4, 2)])]
    with caplog.at_level(logging.WARNING):
        kind(hooks, 3, tmp_path).train()
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.startswith(f"The forward pass changes {name} in evaluation too")


def test_other_models_change_nothing_in_evaluation(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        Normed([EvaluationHook(1, loader=lambda: [torch.ones(4, 2)])], 3, tmp_path).train()
    assert not caplog.records
