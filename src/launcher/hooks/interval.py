"""Intervals in optimizer steps or in epochs."""

from fractions import Fraction
from typing import Any

from launcher.config.schema.run_length import number_of_epochs
from launcher.data.iterable import length
from launcher.errors import ConfigError
from launcher.hooks.base import BaseHook
from launcher.hooks.view import TrainerView


class Interval:
    """An interval: every `value` steps, or every `1epoch`, `0.5epoch`, `2epochs`.

    An interval in epochs is due at the step that takes an epoch's last sample. With 0, it is never
    due.
    """

    def __init__(self, value: int | str, key: str):
        self.value = value
        self.key = key
        self.epochs = number_of_epochs(value)
        if isinstance(value, str) and not self.epochs:
            raise ConfigError(
                f"{key}={value}: must be a number of steps, or of epochs such as 1epoch or"
                " 0.5epoch."
            )
        self._steps = int(value) if self.epochs is None else 0

    def is_due(self, trainer: object, step: int) -> bool:
        if self.epochs is None:
            return self._steps > 0 and step % self._steps == 0
        length = self._length(trainer) * self.epochs
        return step > 0 and step // length > (step - 1) // length

    def check(self, trainer: Any) -> None:
        """Check, before training starts, that the training data have a length if it is needed."""
        if self.epochs is not None:
            self._length(trainer)

    def _length(self, trainer: object) -> Fraction:
        length = steps_per_epoch(trainer)
        if length is None:
            raise ConfigError(
                f"{self.key}={self.value}: the training data have no length; set it in steps."
            )
        return length


class IntervalHook(BaseHook):
    """Calls `report` after every `interval` steps, and after the last step."""

    interval: int

    def on_after_step(self, trainer: TrainerView) -> None:
        if trainer.step % self.interval == 0:
            self.report(trainer)

    def on_last_step(self, trainer: TrainerView) -> None:
        if trainer.step % self.interval:
            self.report(trainer)

    def report(self, trainer: TrainerView) -> None:
        raise NotImplementedError


def steps_per_epoch(trainer: Any) -> Fraction | None:
    """Return the optimizer steps in a pass over training data with a length, a fraction."""
    # Launcher's own loaders know how many batches the current epoch has.
    loader = getattr(trainer, "source", trainer.data_loader)
    own = hasattr(loader, "batches_per_epoch")
    batches = loader.batches_per_epoch if own else length(loader)
    return Fraction(batches) / trainer.gradient_accumulation_steps if batches else None
