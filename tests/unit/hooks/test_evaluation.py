"""Held-out metrics: means over samples, the same for any micro-batches and ranks."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from launcher import (
    CheckpointingHook,
    EarlyStoppingHook,
    EvaluationHook,
    JsonlHook,
    LoggingHook,
    MemoryHook,
)
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.errors import TrainingError
from launcher.hooks.run_record import RecordHook
from launcher.process import signals
from launcher.proof.diff import checkpoint_differences
from launcher.rundir.folder import RunFolder, step_name
from launcher.rundir.record import RunRecord
from support.runner import metrics_of
from support.toy import GOOD, Recorder, Toy


def test_a_loader_of_ones_own_limits_itself():
    with pytest.raises(ValueError, match="limit your loader"):
        EvaluationHook(loader=list, max_samples=3)


def test_evaluation_weighs_by_samples_and_leaves_training_alone(tmp_path):
    class Sometimes(Toy):
        def forward(self, input: torch.Tensor) -> Any:
            loss, records = super().forward(input)
            return loss, records | {"none": None} | ({"rare": 5.0} if len(input) == 4 else {})

    rows = torch.cat([torch.ones(4, 2), torch.zeros(1, 2)])
    batches = DataLoader(rows, batch_size=4)  # type: ignore[arg-type]
    logged = Recorder()
    with_it = Sometimes([EvaluationHook(interval=2, loader=lambda: batches), logged], 3, tmp_path)
    with_it.train()
    without = Toy([], 3, tmp_path)
    without.train()
    for a, b in zip(with_it.model.parameters(), without.model.parameters(), strict=True):
        assert torch.equal(a, b), "an evaluation must not move the training's random numbers"
    assert [step for step, _ in logged.records] == [0, 2, 3]
    metrics = logged.records[0][1]["val"]
    assert metrics["size"] == pytest.approx((4 * 4 + 1 * 1) / 5)
    assert metrics["rare"] == 5.0 and "none" not in metrics
    assert with_it.model.training


class Ignored(Toy):
    """A model whose validation batches, which are zeros, have no target."""

    def num_targets(self, input: torch.Tensor) -> torch.Tensor:
        return (input > 0).sum()


class Lossless(Toy):
    """A model without a loss for validation batches, which are zeros."""

    def forward(self, input: torch.Tensor) -> Any:
        return super().forward(input) if input.any() else (None, {})


@pytest.mark.parametrize("kind", [Ignored, Lossless])
def test_a_validation_set_without_a_target_or_loss_is_reported(tmp_path, kind):
    hook = EvaluationHook(interval=2, loader=lambda: [torch.zeros(4, 2)])
    with pytest.raises(TrainingError, match=r"The evaluation has no loss: .*check the validation"):
        kind([hook], 3, tmp_path, [GOOD]).train()


class Drawing(list[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (batch + torch.rand(()) for batch in super().__iter__())


@pytest.mark.parametrize(("at", "end"), [(2, 4), (4, 4), (2, 2)])
def test_an_interrupted_evaluation_is_made_by_the_resumed_run(tmp_path, at, end):
    """The last step's too, and one that stops the run early: everything is logged, and run.json
    and the last checkpoint have the best value."""

    class Interrupted(Toy):
        stop_at = -1

        def forward(self, input: torch.Tensor) -> Any:
            if not self.model.training and self.step == self.stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().forward(input)

    records: list[RunRecord] = []

    def trainer(folder: str) -> Interrupted:
        batches = Drawing([torch.ones(4, 2), torch.zeros(1, 2)])
        evaluation = EvaluationHook(2, loader=lambda: batches)
        checkpointing = CheckpointingHook(9, best_metric="val/loss", keep_steps=[2])
        record = RunRecord(RunFolder(tmp_path / folder))
        record.begin_attempt(start_step=record.step, max_steps=4, world_size=1, strategy="none")
        recorder = RecordHook(lambda: None, lambda *_: [])
        recorder.record = record
        records.append(record)
        stopping = EarlyStoppingHook(patience=1 if end == 2 else 9, min_delta=9)
        observing = [LoggingHook(3), MemoryHook(3), JsonlHook()]
        hooks = [recorder, evaluation, checkpointing, stopping, *observing]
        return Interrupted(hooks, 4, tmp_path / folder, batches=[GOOD])

    for folder in ("whole", "parts"):
        (tmp_path / folder / "run").mkdir(parents=True)
    trainer("whole/run").train()
    first = trainer("parts/run")
    first.stop_at = at
    signals.install()
    with pytest.raises(signals.SignalExit):
        first.train()
    trainer("parts/run").train()
    whole, _, second = (record.data["best"] for record in records)
    assert second == whole and whole["step"] == end
    found = []
    folders = tmp_path / "whole/run", tmp_path / "parts/run"
    # The one that the signal has saved before its evaluation was complete.
    assert checkpoint_differences(*(at / "checkpoints" / step_name(2) for at in folders)) == []
    for folder in folders:
        assert (folder / "checkpoints" / "best").resolve().name == f"step-0000000{end}"
        lines = [
            {name: value for name, value in line.items() if "memory" not in name}
            for line in metrics_of(folder)
        ]
        hooks = StoredCheckpoint(folder / "checkpoints" / "latest").rank_state(0)["hooks"]
        names = ("CheckpointingHook", "EvaluationHook", "EarlyStoppingHook")
        found.append((lines, *(hooks[name] for name in names)))
    assert found[0] == found[1]
    assert [line["step"] for line in found[0][0]] == ([0, 2, 3, 4] if end == 4 else [0, 2])
    assert "train/loss" in found[0][0][-1]


def test_several_loaders_by_name(tmp_path):
    logged = Recorder()
    loaders = {
        "": lambda: [torch.ones(2, 2)],
        "zeros": lambda: [torch.zeros(3, 2)],
        "none": lambda: None,
    }
    Toy([EvaluationHook(loader=loaders), logged], 1, tmp_path).train()
    val = logged.records[0][1]["val"]
    assert val["size"] == 2 and val["zeros"]["size"] == 3 and val["loss"] != val["zeros"]["loss"]
    assert "none" not in val
