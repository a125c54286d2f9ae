"""Hooks that a metric steers, such as a scheduler's (`ReduceLROnPlateau`)."""

from typing import Any, ClassVar

from launcher.config.schema.metric_direction import without_noise
from launcher.hooks.base import BaseHook
from launcher.hooks.best import Best
from launcher.hooks.view import Records, State, TrainerView


class SteeredByMetric(BaseHook):
    """A hook that a logged metric steers, which is an error if it is never logged."""

    provides = ()
    steered_by: ClassVar = ("metric",)
    best: Best

    def on_before_step(self, trainer: TrainerView) -> None:
        self.best.check(trainer)

    def on_after_train(self, trainer: TrainerView) -> None:
        self.best.check_end(trainer)


class MetricScheduleHook(SteeredByMetric):
    """Calls the scheduler's `step` with rank 0's value of a metric, each time that it is logged.

    A value that differs from the best one by rounding only is passed as the best one.
    """

    def __init__(self, metric: Best):
        self.best = metric

    def on_log(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        if not dry_run and self.best.observe(records):
            scheduler: Any = trainer.lr_scheduler
            latest = self.best.latest
            best = self.best.value
            assert latest is not None
            self.best.update(trainer.step)
            scheduler.step(without_noise(latest, best, self.best.mode))

    def on_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        state_dict["metric_schedule"] = self.best.state()

    def on_load_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        saved = state_dict.get("metric_schedule")
        if saved:
            self.best.load(saved)
