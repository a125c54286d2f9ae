"""Which value of a metric is the best: its direction, and that all ranks decide alike."""

from typing import Any

import pytest
import torch

from launcher import CheckpointingHook, EarlyStoppingHook, LoggingHook
from launcher.errors import ConfigError, TrainingError
from launcher.hooks.best import Best
from launcher.hooks.metric_schedule import MetricScheduleHook
from support.toy import Toy, Values

STEERED = (
    lambda metric: CheckpointingHook(9, best_metric=metric, best_mode="min"),
    lambda metric: EarlyStoppingHook(metric=metric, mode="min"),
    lambda metric: MetricScheduleHook(
        Best(metric, "min", keys=("scheduler.metric", "scheduler.mode"))
    ),
)


def updated(best: Best, value: float, step: int) -> bool:
    return best.observe({"val": {"acc": value}}) and best.update(step)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_best(mode):
    best = Best("val/acc", mode, min_delta=0.1)
    sign = 1 if mode == "max" else -1
    assert updated(best, sign * 0.5, 1)
    assert not updated(best, sign * 0.55, 2)
    assert updated(best, sign * 0.7, 3)
    assert not updated(best, float("nan"), 4) and not updated(best, sign * float("inf"), 5)
    restored = Best("val/acc", mode)
    restored.load(best.state())
    assert (restored.value, restored.step) == (sign * 0.7, 3)
    assert not best.observe({"val": {}}) and not best.observe({"train": {"acc": 1.0}})


@pytest.mark.parametrize(
    ("make", "keys"),
    [
        (lambda metric: CheckpointingHook(1, best_metric=metric), "hooks.checkpointing.best_m"),
        (lambda metric: EarlyStoppingHook(metric=metric), "hooks.early_stopping.m"),
    ],
)
def test_a_name_without_a_direction_is_rejected(make, keys):
    with pytest.raises(
        ConfigError, match=rf"^{keys}etric=val/x: .*; set {keys}ode=min or {keys}ode=max\.$"
    ):
        make("val/x")


@pytest.mark.parametrize("make", STEERED, ids=["best", "stopping", "plateau"])
@pytest.mark.parametrize(
    ("metric", "names"), [("val_loss", ("loss", "accuracy")), ("val/loss", ("clean/loss",))]
)
def test_a_misspelled_metric_ends_the_run_at_the_second_evaluation(tmp_path, make, metric, names):
    values = Values({step: dict.fromkeys(names, 1.0) for step in (2, 4)})
    trainer = Toy([LoggingHook(5), values, make(metric), CheckpointingHook(9)], 9, tmp_path)
    with pytest.raises(
        ConfigError,
        match=rf"metric={metric}: is not logged; choose one of val/{names[0]}\.$",
    ):
        trainer.train()
    assert trainer.step == 5, "when the next step begins"


@pytest.mark.parametrize("make", STEERED, ids=["best", "stopping", "plateau"])
def test_a_metric_that_was_never_logged_fails_the_run_at_its_end(tmp_path, make, caplog):
    """The last step is saved before that, and a repeated command fails as well; a pause or a signal
    before is none."""
    values = {step: {"loss": 1.0} for step in (1, 2, 3)}
    hooks = lambda: [Values(values), make("my/error"), CheckpointingHook(9)]  # noqa: E731
    paused = Toy(hooks(), 4, tmp_path, pause_at=1)
    paused.train()
    assert paused.is_paused
    for _ in range(2):
        with pytest.raises(
            TrainingError, match=r"metric=my/error: was never logged, so it has had no effect"
        ):
            Toy(hooks(), 4, tmp_path).train()
    assert (tmp_path / "checkpoints" / "latest").resolve().name == "step-00000004"
    warnings = [
        record for record in caplog.records if "has not been logged so far" in record.getMessage()
    ]
    assert len(warnings) == 1


def test_a_default_best_metric_needs_no_validation_set(tmp_path):
    Toy([LoggingHook(1), CheckpointingHook(9, best_metric="val/loss")], 2, tmp_path).train()
    stopping = Toy([LoggingHook(1), EarlyStoppingHook()], 2, tmp_path)
    with pytest.raises(
        TrainingError, match=r"hooks.early_stopping.metric=val/loss: was never logged"
    ):
        stopping.train()


def test_a_metric_that_is_logged_late_is_no_error(tmp_path):
    for _ in range(2):  # the second attempt has nothing left to log
        own = Values({3: {"score": 1.0}}, group="own")
        steered = [make("own/score") for make in STEERED]
        Toy([Values({2: {"loss": 1.0}}), own, *steered], 3, tmp_path).train()


@pytest.mark.slow
def test_a_plateau_is_not_left_by_rounding(tmp_path):
    """With threshold=0, torch counts any gain."""

    class Plateau(Toy):
        def build_lr_scheduler(self) -> Any:
            return torch.optim.lr_scheduler.ReduceLROnPlateau(
                self.optimizer, "max", 0.5, patience=1, threshold=0.0
            )

    def trained(noise: float, max_steps: int, folder: str) -> float:
        values = Values({step: {"acc": 0.9 + noise * step} for step in range(1, 7)})
        hooks = [values, MetricScheduleHook(Best("val/acc", "max")), CheckpointingHook(9)]
        trainer = Plateau(hooks, max_steps, tmp_path / folder)
        trainer.train()
        return float(trainer.optimizer.param_groups[0]["lr"])

    assert trained(0.0, 6, "equal") == trained(1e-9, 6, "noise") == 0.025
    assert trained(1e-3, 6, "gain") == 0.1
    trained(1e-9, 3, "resumed")
    assert trained(1e-9, 6, "resumed") == 0.025


def test_other_metrics_and_other_groups_are_no_error(tmp_path):
    """A hook may log numbers of its own under `val`, and the metric may come in a later call at the
    same step."""
    own, evaluation = (
        Values({1: {"mine": 1.0}, 2: {"loss": 3.0}}),
        Values({2: {"accuracy": 0.5}, 3: {"loss": 2.0}}),
    )
    hook = CheckpointingHook(9, best_metric="val/accuracy")
    Toy([LoggingHook(1), own, evaluation, hook], 3, tmp_path).train()
    assert hook.best is not None and (hook.best.value, hook.best.step) == (0.5, 2)


@pytest.mark.parametrize("make", STEERED, ids=["best", "stopping", "plateau"])
def test_a_metric_that_comes_after_the_first_evaluation_is_waited_for(tmp_path, make):
    """One evaluation is no verdict, even where the name looks like a slip."""
    values = {2: {"loss": 1.0}, 4: {"loss": 1.0, "loss_": 1.0}}
    Toy([Values(values), make("val/loss_")], 5, tmp_path).train()
