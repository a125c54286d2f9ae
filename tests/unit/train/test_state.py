"""What a trainer stores beside model, optimizer and hooks."""

from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.train.state import load_training_state, training_state
from support.toy import GOOD, Toy


class Scaled(Toy):
    def build_grad_scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=8.0)


def built(folder: Path, kind: type[Toy] = Scaled, batches: Any = None) -> Toy:
    trainer = kind([], 9, folder, batches)
    trainer.build()
    return trainer


def test_all_of_it_is_restored(tmp_path: Path) -> None:
    trainer = built(tmp_path)
    trainer.state.step, trainer.state.epoch, trainer.state.stop_reason = 7, 2, "early stopping"
    trainer.state.skipped_steps, trainer.state.skipped_in_row = 5, 3
    trainer.lr_scheduler.last_epoch = 4
    trainer.grad_scaler.load_state_dict({**trainer.grad_scaler.state_dict(), "scale": 2.0})
    saved = training_state(trainer)
    assert saved["data_loader"] is not None
    other = built(tmp_path)
    assert training_state(other) != saved
    load_training_state(other, saved)
    assert training_state(other) == saved


def test_a_state_of_an_older_version_counts_from_zero(tmp_path: Path) -> None:
    trainer = built(tmp_path, Toy)
    fresh = training_state(trainer)
    trainer.state.skipped_steps = trainer.state.skipped_in_row = trainer.state.epoch = 1
    trainer.state.stop_reason = "early stopping"
    load_training_state(trainer, {"step": 0, "lr_scheduler": None, "grad_scaler": {}})
    assert training_state(trainer) == fresh


class Constant(Scaled):
    def build_lr_scheduler(self) -> Any:
        return None


@pytest.mark.parametrize(("before", "now"), [(Scaled, Toy), (Toy, Scaled), (Scaled, Constant), (Constant, Scaled)])
def test_what_only_one_of_two_runs_has_is_not_loaded(tmp_path: Path, before: type[Toy], now: type[Toy]) -> None:
    """Another precision or schedule after a rollback."""
    trainer = built(tmp_path, now)
    fresh = training_state(trainer)
    load_training_state(trainer, training_state(built(tmp_path, before)))
    for key in ("grad_scaler", "lr_scheduler"):
        assert training_state(trainer)[key] == fresh[key]


@pytest.mark.parametrize(
    ("step", "batches", "warning"),
    [
        (0, [GOOD], None),
        (1, [GOOD], "order starts from the beginning: list is not a plain DataLoader and has no state_dict()."),
        (1, None, "order starts from the beginning: the checkpoint has no position."),
    ],
)
def test_a_lost_position_is_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, step: int, batches: Any, warning: str | None
) -> None:
    saved = training_state(built(tmp_path, batches=[GOOD]))
    load_training_state(built(tmp_path, batches=batches), saved | {"step": step})
    assert (warning in caplog.text) if warning else not caplog.text
