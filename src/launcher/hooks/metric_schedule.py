"""Steps a scheduler that follows a metric (`torch.optim.lr_scheduler.ReduceLROnPlateau`)."""

from typing import Any

from launcher.hooks.base import BaseHook, Records, TrainerView
from launcher.hooks.best import Best


class MetricScheduleHook(BaseHook):
    """Calls the scheduler's `step` with each logged value of a metric. All ranks use rank 0's value."""

    def __init__(self, metric: Best):
        self.metric = metric

    def on_log(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        if not dry_run and self.metric.observe(records):
            scheduler: Any = trainer.lr_scheduler
            scheduler.step(self.metric.latest)

    def on_step_boundary(self, trainer: TrainerView) -> None:
        self.metric.check()
