"""Hooks on a real, tiny trainer: what is logged, shown, evaluated, stopped and kept."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from launcher import (
    BaseHook,
    BaseTrainer,
    CheckpointingHook,
    EarlyStoppingHook,
    EvaluationHook,
    JsonlHook,
    LoggingHook,
    ProgressHook,
)
from launcher.errors import ConfigError, TrainingError
from launcher.hooks.jsonl import drop_lines_after


class Toy(BaseTrainer):
    def __init__(self, hooks: Sequence[BaseHook], max_steps: int, workspace: Path, accumulation: int = 1):
        super().__init__(max_steps, 1.0, workspace=workspace, device="cpu", gradient_accumulation_steps=accumulation)
        self.given = hooks

    def build_data_loader(self) -> Any:
        return torch.utils.data.DataLoader(torch.arange(24.0).reshape(12, 2) / 24, batch_size=4)

    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.Linear(2, 1))

    def build_optimizer(self) -> torch.optim.Optimizer:
        groups = [{"params": [p], "name": name} for name, p in self.model.named_parameters()]
        return torch.optim.AdamW(groups, lr=0.1)

    def build_lr_scheduler(self) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.5**step)

    def build_hooks(self) -> Sequence[BaseHook]:
        return self.given

    def forward(self, input: torch.Tensor) -> Any:
        loss = self.model(input).pow(2).mean()
        return loss, {"size": float(len(input)), "aux": {"l": loss.detach()}}


class Heard(BaseHook):
    def __init__(self) -> None:
        self.records: list[tuple[int, dict[str, Any]]] = []

    def on_log(self, trainer: Any, records: dict[str, Any], dry_run: bool = False) -> None:
        self.records.append((trainer.step, records))


def test_logging_has_means_and_the_rate_before_the_step(tmp_path: Path) -> None:
    heard = Heard()
    trainer = Toy([LoggingHook(interval=2), heard], 5, tmp_path, accumulation=3)
    trainer.train()
    assert [step for step, _ in heard.records] == [2, 4, 5], "the last step is logged in any case"
    train = heard.records[0][1]["train"]
    assert set(train) == {
        "size", "aux", "loss", "grad_norm", "lr", "step_time", "data_time", "non_finite_grad_retry_count"
    }  # fmt: skip
    assert train["size"] == 4.0
    assert train["lr"] == dict.fromkeys(["0.weight", "0.bias", "2.weight", "2.bias"], 0.05), "step 2 ran at 0.1 * 0.5"
    assert train["aux"]["l"] == pytest.approx(train["loss"])


def test_progress_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ticks = iter(range(1000))
    hook = ProgressHook(interval=2, with_records=True, eta_warmup=1, live=False, clock=lambda: float(next(ticks)))
    Toy([hook], 5, tmp_path).train()
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Step")]
    assert [line.split(":")[0] for line in lines] == ["Step 2/5", "Step 4/5", "Step 5/5"]
    assert "eta 0:00:03" in lines[0], "one tick a step"
    for word in ("step 0.", "data 0.", "loss ", "grad_norm ", "lr_0 5.00e-02", "| size 4.000 aux/l "):
        assert word in lines[0]


def test_jsonl_has_a_line_a_step(tmp_path: Path) -> None:
    Toy([LoggingHook(interval=1), Twice(), JsonlHook()], 3, tmp_path).train()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all({"train/loss", "train/lr/0.bias", "val/x", "time", "attempt"} <= set(line) for line in lines)


class Twice(BaseHook):
    """Logs once more at each step."""

    def on_after_step(self, trainer: Any) -> None:
        trainer.log({"val": {"x": 1.0, "bad": float("nan")}})
        trainer.log({"val": {"unseen": 1.0}}, dry_run=True)


def test_lines_after_a_step_are_dropped_and_torn_ones(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    drop_lines_after(file, 2)
    assert file.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_evaluation_weighs_by_samples_and_leaves_training_alone(tmp_path: Path) -> None:
    batches = [torch.ones(4, 2), torch.zeros(1, 2)]
    heard = Heard()
    with_it = Toy([EvaluationHook(interval=2, loader=lambda: batches), heard], 3, tmp_path)
    with_it.train()
    without = Toy([], 3, tmp_path)
    without.train()
    for a, b in zip(with_it.model.parameters(), without.model.parameters(), strict=True):
        assert torch.equal(a, b), "an evaluation must not move the training's random numbers"
    assert [step for step, _ in heard.records] == [0, 2, 3]
    assert heard.records[0][1]["val"]["size"] == pytest.approx((4 * 4 + 1 * 1) / 5)
    assert with_it.model.training


def test_early_stopping_counts_and_survives(tmp_path: Path) -> None:
    class Falling(BaseHook):
        def on_after_step(self, trainer: Any) -> None:
            trainer.log({"val": {"loss": max(0.5, 1.0 - 0.25 * trainer.step)}})

    trainer = Toy([Falling(), EarlyStoppingHook(patience=3)], 50, tmp_path)
    trainer.train()
    assert trainer.step == 5, "best at step 2, then three without a gain"
    assert "0.5 (step 2)" in str(trainer.state.stop_reason)


def test_checkpoints_best_and_rotation(tmp_path: Path) -> None:
    class Metric(BaseHook):
        values = {1: 3.0, 2: 1.0, 3: 2.0, 4: 2.0}

        def on_after_step(self, trainer: Any) -> None:
            trainer.log({"val": {"loss": self.values[trainer.step]}})

    def hooks() -> list[BaseHook]:
        return [CheckpointingHook(interval=1, best_metric="val/loss"), Metric()]

    Toy(hooks(), 3, tmp_path).train()
    names = lambda: sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*"))  # noqa: E731
    assert names() == ["step-00000002", "step-00000003"]
    Toy(hooks(), 4, tmp_path).train()
    assert names() == ["step-00000002", "step-00000004"], "best 1.0 of the first attempt stays the best"
    assert (tmp_path / "checkpoints" / "best").resolve().name == "step-00000002"


@pytest.mark.parametrize(("load", "error"), [("never", "run.resume=never"), ("no/such", "no such checkpoint")])
def test_load_modes_that_refuse(tmp_path: Path, load: str, error: str) -> None:
    Toy([CheckpointingHook(interval=1)], 1, tmp_path).train()
    with pytest.raises(ConfigError, match=error):
        Toy([CheckpointingHook(interval=1, load=load)], 2, tmp_path).train()


def test_another_optimizer_is_refused(tmp_path: Path) -> None:
    class Other(Toy):
        def build_optimizer(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.model.parameters())

    Toy([CheckpointingHook(interval=1)], 1, tmp_path).train()
    with pytest.raises(TrainingError, match="parameter groups"):
        Other([CheckpointingHook(interval=1)], 2, tmp_path).train()


@pytest.mark.parametrize("bad", [{"interval": 0}, {"interval": 1, "exit_code": "none"}])
def test_bad_checkpointing_arguments(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        CheckpointingHook(**bad)
