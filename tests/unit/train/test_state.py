"""State that a trainer stores next to model, optimizer and hooks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from launcher.optim import schedulers
from support.toy import GOOD, Toy


class Scaled(Toy):
    def build_grad_scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=8.0)


def built(folder: Path, kind: type[Toy] = Scaled, batches: Any = None) -> Toy:
    trainer = kind([], 9, folder, batches)
    trainer.build()
    return trainer


def test_all_of_it_is_restored(tmp_path):
    trainer = built(tmp_path)
    trainer.state.step, trainer.state.epoch, trainer.state.stop_reason = 7, 2, "early stopping"
    trainer.state.skipped_steps, trainer.state.skipped_in_row = 5, 3
    # A hook may steer by them. Times differ, and the last two are not numbers.
    newest = {"val/loss": torch.tensor(0.5), "val/f1": np.float32(2), "a": 1, "val/none": None}
    others = {"train/step_time": 0.1, "val/each": torch.zeros(2), "val/table": object()}
    trainer.state.metrics = newest | others
    for _ in range(4):
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    trainer.grad_scaler.load_state_dict({**trainer.grad_scaler.state_dict(), "scale": 2.0})
    saved = trainer.training_state()
    assert saved["data_loader"] is not None
    other = built(tmp_path)
    assert other.training_state() != saved
    other.load_training_state(saved)
    other.restore_schedule(saved)
    assert other.training_state() == saved
    assert other.state.metrics == {"val/loss": 0.5, "val/f1": 2.0, "a": 1}


class Constant(Scaled):
    def build_lr_scheduler(self) -> Any:
        return None


@pytest.mark.parametrize(
    ("before", "now"), [(Scaled, Toy), (Toy, Scaled), (Scaled, Constant), (Constant, Scaled)]
)
def test_state_that_only_one_of_two_runs_has_is_not_loaded(tmp_path, before, now):
    """Another precision or schedule after a rollback."""
    trainer = built(tmp_path, now)
    fresh = trainer.training_state()
    saved = built(tmp_path, before).training_state()
    trainer.load_training_state(saved)
    trainer.restore_schedule(saved)
    for key in ("grad_scaler", "lr_scheduler"):
        assert trainer.training_state()[key] == fresh[key]


@pytest.mark.parametrize(
    ("step", "batches", "warning"),
    [
        (0, [GOOD], None),
        (
            1,
            [GOOD],
            (
                "order starts from the beginning: list is not a plain DataLoader and has no"
                " state_dict()."
            ),
        ),
        (1, None, "order starts from the beginning: the checkpoint has no position."),
    ],
)
def test_a_lost_position_is_mentioned(tmp_path, caplog, step, batches, warning):
    saved = built(tmp_path, batches=[GOOD]).training_state()
    built(tmp_path, batches=batches).load_training_state(saved | {"step": step})
    assert (warning in caplog.text) if warning else not caplog.text


def test_a_rate_that_a_hook_has_set_is_kept_under_an_unchanged_schedule(tmp_path):
    trainer = built(tmp_path, Toy)
    schedulers.set_rate(trainer.optimizer.param_groups[0], 7.0)
    trainer.restore_schedule(trainer.training_state())
    assert trainer.optimizer.param_groups[0]["lr"] == 7.0
