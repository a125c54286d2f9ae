"""Logs means over each interval by `trainer.log`, which hands them to every tracker."""

from launcher.hooks.stats import StatsHook
from launcher.hooks.view import State, Stats, TrainerView
from launcher.types import PositiveInt


class LoggingHook(StatsHook):
    """Logs the training metrics under `train`.

    They are the records, loss, grad_norm, lr by group, step_time, data_time, max_memory and
    non_finite_grad_retry_count.

    Args:
        interval: in optimizer steps.
        sync: log means over all ranks.

    Examples:
        >>> class Logging(Line):
        ...     def build_hooks(self):
        ...         return [LoggingHook(interval=1)]
        >>> trainer = Logging(max_steps=1, device="cpu")
        >>> trainer.train()
        >>> "train/loss" in trainer.state.metrics
        True
    """

    changes_numbers = False
    provides = ("logging", "train/")

    def __init__(self, interval: PositiveInt = 10, sync: bool = True):
        super().__init__(interval, sync)

    def report_means(self, trainer: TrainerView, stats: Stats) -> None:
        if stats.unexplained:
            trainer.logger.warning(
                "Step %d: the loss was not finite in %d of the last %d steps, although the gradient"
                " was.",
                trainer.step,
                stats.unexplained,
                stats.steps,
            )
        trainer.log({"train": stats.records | stats.numbers | {"lr": stats.learning_rates}})

    def on_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        state_dict["logging"] = self.state(trainer)

    def on_load_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        if "logging" in state_dict:
            self.load_state(state_dict["logging"])
