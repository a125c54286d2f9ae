"""A state whose updates are skipped may be broken: it is not saved, and a run that ends in it has
failed."""

from pathlib import Path

import pytest
import torch

from launcher import CheckpointingHook, EvaluationHook
from launcher.checkpoint.store import CheckpointStore
from launcher.errors import TrainingError
from support.toy import BAD, GOOD, Toy, Values


def steps(workspace: Path) -> list[int]:
    return CheckpointStore(workspace / "checkpoints").steps()


def test_a_run_that_ends_in_skipped_updates_fails_and_keeps_its_last_good_checkpoint(tmp_path):
    with pytest.raises(TrainingError, match="2 skipped updates in a row"):
        Toy([CheckpointingHook(1)], 4, tmp_path, [GOOD, GOOD, BAD, BAD]).train()
    assert steps(tmp_path) == [2]
    assert (tmp_path / "checkpoints" / "latest").resolve().name == "step-00000002"


def test_a_checkpoint_that_was_due_is_saved_at_the_next_good_step(tmp_path):
    Toy([CheckpointingHook(2, keep_previous=9)], 5, tmp_path, [GOOD, BAD, GOOD, GOOD, GOOD]).train()
    assert steps(tmp_path) == [3, 4, 5]


def test_a_metric_of_such_a_state_is_not_the_best(tmp_path):
    hooks = [
        Values({1: {"loss": 2.0}, 2: {"loss": 1.0}}),
        CheckpointingHook(9, best_metric="val/loss"),
    ]
    Toy(hooks, 3, tmp_path, [GOOD, BAD, GOOD]).train()
    assert (tmp_path / "checkpoints" / "best").resolve().name == "step-00000001"


def test_a_run_that_ends_in_a_non_finite_validation_fails(tmp_path):
    batches = [GOOD]
    hook = EvaluationHook(interval=1, loader=lambda: batches)

    class Spoiled(Toy):
        def forward(self, input: torch.Tensor) -> object:
            loss, records = super().forward(input)
            return loss * (1.0 if self.model.training or self.step != 3 else float("inf")), records

    with pytest.raises(TrainingError, match="val/loss=inf at step 3"):
        Spoiled([hook, CheckpointingHook(1)], 3, tmp_path).train()
    assert steps(tmp_path) == [2]


def test_a_loss_scaler_in_search_of_its_scale_is_no_failure(tmp_path):
    trainer = Toy([CheckpointingHook(1)], 1, tmp_path, [GOOD * 100], mixed_precision="fp16")
    trainer.train()
    assert trainer.state.skipped_in_row == 1 and steps(tmp_path) == [1]
