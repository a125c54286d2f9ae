"""Logs means over each interval by `trainer.log`, which hands them to every tracker."""

from launcher.hooks.stats import StatsHook
from launcher.hooks.view import State, Stats, TrainerView
from launcher.models.base import IGNORED
from launcher.process.plural import plural
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
        self._without_targets = 0
        """Steps of this attempt whose labels were all ignored."""

    def report_means(self, trainer: TrainerView, stats: Stats) -> None:
        if stats.unexplained:
            trainer.logger.warning(
                "Step %d: the loss was not finite in %d of the last %d steps, although the gradient"
                " was.",
                trainer.step,
                stats.unexplained,
                stats.steps,
            )
        if stats.without_targets:
            self._warn_of_targets(trainer, stats.without_targets)
        trainer.log({"train": stats.records | stats.numbers | {"lr": stats.learning_rates}})

    def _warn_of_targets(self, trainer: TrainerView, count: int) -> None:
        """Warn of the 1st, 2nd, 4th, 8th ... step whose labels were all ignored."""
        before = self._without_targets
        self._without_targets = self._without_targets + count
        if self._without_targets.bit_length() > before.bit_length():
            trainer.logger.warning(
                "Step %d: %s had no target, since all labels were %d (ignored); such a step does"
                " not train, so check the training data.",
                trainer.step,
                plural(self._without_targets, "step"),
                IGNORED,
            )

    def on_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        state_dict["logging"] = self.state(trainer)

    def on_load_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        if "logging" in state_dict:
            self.load_state(state_dict["logging"])
