"""The line at an epoch's end: the same whether the run was interrupted within the epoch or not."""

import logging
from pathlib import Path

import pytest
import torch

from launcher import BaseHook, CheckpointingHook, EvaluationHook
from launcher.hooks.epochs import EpochSummaryHook
from support.toy import GOOD, Toy


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage() for record in caplog.records if record.getMessage().startswith("Epoch")
    ]


def test_a_resumed_epoch_has_the_same_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def train(folder: str, max_steps: int) -> None:
        evaluation = EvaluationHook("1epoch", loader=lambda: [GOOD], at_start=False)
        hooks = [EpochSummaryHook(), evaluation, CheckpointingHook(9)]
        Toy(hooks, max_steps, tmp_path / folder, batches=[GOOD] * 3).train()

    train("whole", 6)
    whole = lines(caplog)
    assert len(whole) == 2
    assert whole[1].startswith("Epoch 2/2, step 6: train/loss ")
    assert " val/loss " in whole[1]
    caplog.clear()
    train("parts", 2)
    train("parts", 6)
    assert lines(caplog) == whole


@pytest.mark.parametrize("has_hook", [False, True])
def test_passes_are_counted_at_each_step_only_for_a_hook_of_their_events(
    has_hook: bool, tmp_path: Path
) -> None:
    class Counting(list[torch.Tensor]):
        lengths = 0

        def __len__(self) -> int:
            self.lengths += 1
            return super().__len__()

    def lengths(max_steps: int) -> int:
        batches = Counting([GOOD] * 3)
        hooks: list[BaseHook] = [EpochSummaryHook()] if has_hook else []
        Toy(hooks, max_steps, tmp_path / f"{max_steps}", batches=batches).train()
        return batches.lengths

    assert (lengths(9) > lengths(3)) is has_hook
