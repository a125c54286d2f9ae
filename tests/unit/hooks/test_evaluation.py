"""Held-out metrics: means over samples, the same for any micro-batches and ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch

from launcher import EvaluationHook
from support.drive import validated
from support.ranks import together
from support.toy import Recorder, Toy

DATA = [
    "data.num_val_samples=30",
    "hooks=[evaluation,checkpointing]",
    "hooks.evaluation.max_samples=17",
    "data.batch_size=12",
]


def test_metrics_depend_on_neither_ranks_nor_micro_batches(tmp_path: Path) -> None:
    expected = validated([*DATA, "strategy=none"])
    tasks = [("validated", {"overrides": [*DATA, "strategy=ddp", f"trainer.micro_batch_size={n}"]}) for n in (1, 2, 6)]
    for on_ranks in together(2, tmp_path, tasks):
        assert on_ranks[0] == on_ranks[1] == pytest.approx(expected, rel=1e-6)
    assert validated([*DATA, "strategy=none", "trainer.micro_batch_size=3"]) == pytest.approx(expected, rel=1e-6)
    assert validated([*DATA, "strategy=none", "hooks.evaluation.max_samples=18"]) != pytest.approx(expected, rel=1e-6)


def test_a_record_of_some_batches_is_a_mean_over_their_samples(tmp_path: Path) -> None:
    class Sometimes(Toy):
        def forward(self, input: torch.Tensor) -> Any:
            loss, records = super().forward(input)
            return loss, {"size": records["size"], "none": None} | ({"rare": 5.0} if len(input) == 4 else {})

    logged = Recorder()
    batches = [torch.ones(4, 2), torch.zeros(1, 2)]
    Sometimes([EvaluationHook(loader=lambda: batches), logged], 1, tmp_path).train()
    metrics = logged.records[0][1]["val"]
    assert metrics["rare"] == 5.0 and metrics["size"] == pytest.approx((4 * 4 + 1) / 5) and "none" not in metrics


def test_a_loader_of_ones_own_limits_itself() -> None:
    with pytest.raises(ValueError, match="limit your loader"):
        EvaluationHook(loader=list, max_samples=3)


def test_evaluation_weighs_by_samples_and_leaves_training_alone(tmp_path: Path) -> None:
    batches = [torch.ones(4, 2), torch.zeros(1, 2)]
    logged = Recorder()
    with_it = Toy([EvaluationHook(interval=2, loader=lambda: batches), logged], 3, tmp_path)
    with_it.train()
    without = Toy([], 3, tmp_path)
    without.train()
    for a, b in zip(with_it.model.parameters(), without.model.parameters(), strict=True):
        assert torch.equal(a, b), "an evaluation must not move the training's random numbers"
    assert [step for step, _ in logged.records] == [0, 2, 3]
    assert logged.records[0][1]["val"]["size"] == pytest.approx((4 * 4 + 1 * 1) / 5)
    assert with_it.model.training
