"""Steps a scheduler that follows a metric (`torch.optim.lr_scheduler.ReduceLROnPlateau`)."""

from typing import Any, ClassVar

from launcher.config.schema.metric_direction import without_noise
from launcher.hooks.base import BaseHook, Records, State, TrainerView
from launcher.hooks.best import Best


class MetricScheduleHook(BaseHook):
    """Calls the scheduler's `step` with rank 0's value of a metric, each time that it is logged.

    A value that differs from the best one by rounding only is passed as the best one.
    """

    needs: ClassVar = {"metric=val/*": "evaluation", "metric=train/*": "logging"}
    steered_by: ClassVar = ("metric",)

    def __init__(self, metric: Best):
        self.metric = metric

    def on_log(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        if not dry_run and self.metric.observe(records):
            scheduler: Any = trainer.lr_scheduler
            latest, best = self.metric.latest, self.metric.value
            assert latest is not None
            self.metric.update(trainer.step)
            scheduler.step(without_noise(latest, best, self.metric.mode))

    def on_before_step(self, trainer: TrainerView) -> None:
        self.metric.check(trainer)

    def on_after_train(self, trainer: TrainerView) -> None:
        self.metric.check_end(trainer)

    def on_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        state_dict["metric_schedule"] = self.metric.state()

    def on_load_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        if saved := state_dict.get("metric_schedule"):
            self.metric.load(saved)
