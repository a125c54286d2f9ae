"""Which value of a metric is the best: its direction, and that all ranks decide alike."""

from pathlib import Path
from typing import Any

import pytest

from launcher import CheckpointingHook, EarlyStoppingHook, LoggingHook
from launcher.config.direction import direction
from launcher.errors import ConfigError
from launcher.hooks.best import Best
from support.toy import Toy, Values


def updated(best: Best, value: float, step: int) -> bool:
    return best.observe({"val": {"acc": value}}) and best.update(step)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_best(mode: Any) -> None:
    best = Best("val/acc", mode, min_delta=0.1)
    sign = 1 if mode == "max" else -1
    assert updated(best, sign * 0.5, 1) and not updated(best, sign * 0.55, 2) and updated(best, sign * 0.7, 3)
    assert not updated(best, float("nan"), 4) and not updated(best, sign * float("inf"), 5)
    restored = Best("val/acc", mode)
    restored.load(best.state())
    assert (restored.value, restored.step) == (sign * 0.7, 3)
    assert not best.observe({"val": {}}) and not best.observe({"train": {"acc": 1.0}})


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("val/loss", "min"), ("train/aux/loss_total", "min"), ("val/perplexity", "min"), ("val/top1_error", "min"),
        ("val/accuracy", "max"), ("val/f1", "max"), ("val/AUC", "max"), ("val/top5", "max"), ("val/bleu4", "max"),
        ("train/grad_norm", None), ("val/x", None),
    ],
)  # fmt: skip
def test_the_name_implies_the_direction(metric: str, expected: str | None) -> None:
    assert direction(metric) == expected


@pytest.mark.parametrize(
    ("make", "keys"),
    [
        (lambda metric: CheckpointingHook(1, best_metric=metric), "hooks.checkpointing.best_m"),
        (lambda metric: EarlyStoppingHook(metric=metric), "hooks.early_stopping.m"),
    ],
)
def test_a_name_without_a_direction_is_refused(make: Any, keys: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{keys}etric=val/x: .*; set {keys}ode=min or {keys}ode=max\.$"):
        make("val/x")


@pytest.mark.parametrize(
    "hook", [CheckpointingHook(1, best_metric="val/acc"), EarlyStoppingHook(metric="val/acc")], ids=["best", "stopping"]
)
def test_a_metric_that_the_first_evaluation_does_not_have_is_an_error(tmp_path: Path, hook: Any) -> None:
    metrics = Values({step: {"loss": 1.0, "accuracy": 0.5} for step in (2, 4)})
    trainer = Toy([metrics, hook], 9, tmp_path)
    with pytest.raises(ConfigError, match=r"metric=val/acc: is not logged; choose one of val/accuracy, val/loss\."):
        trainer.train()
    assert trainer.step == 2


@pytest.mark.parametrize("hook", [CheckpointingHook(1, best_metric="vall/acc"), EarlyStoppingHook(metric="vall/acc")])
def test_a_misspelt_group_is_an_error(tmp_path: Path, hook: Any) -> None:
    trainer = Toy([LoggingHook(1), Values({2: {"loss": 1.0, "accuracy": 0.5}}), hook], 9, tmp_path)
    with pytest.raises(ConfigError, match=r"metric=vall/acc: is not logged; choose one of val/accuracy, val/loss\."):
        trainer.train()
    assert trainer.step == 2


def test_other_metrics_and_other_groups_are_no_error(tmp_path: Path) -> None:
    """A hook may log numbers of its own under `val`, and the metric may come in a later call at the same step."""
    own, evaluation = Values({1: {"mine": 1.0}, 2: {"loss": 3.0}}), Values({2: {"accuracy": 0.5}, 3: {"loss": 2.0}})
    hook = CheckpointingHook(9, best_metric="val/accuracy")
    Toy([LoggingHook(1), own, evaluation, hook], 3, tmp_path).train()
    assert hook.best is not None and (hook.best.value, hook.best.step) == (0.5, 2)


def test_the_best_is_logged_and_kept_by_the_metrics_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    values = Values({step: {"accuracy": value} for step, value in enumerate([0.1, 0.4, 0.9, 0.8], start=1)})
    Toy([values, CheckpointingHook(9, best_metric="val/accuracy")], 4, tmp_path).train()
    assert (tmp_path / "checkpoints" / "best").resolve().name == "step-00000003"
    lines = [record.getMessage() for record in caplog.records if "best so far" in record.getMessage()]
    assert lines[0] == "Step 1: val/accuracy 0.1 is the best so far."
    assert lines[2] == "Step 3: val/accuracy 0.9 is the best so far (before: 0.4 at step 2)."
