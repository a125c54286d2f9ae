"""Decide which checkpoints are kept."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Retention:
    """Rule for the checkpoints that are kept.

    Args:
        keep_previous: keep this many checkpoints before the newest.
        keep_interval: keep every checkpoint whose step is a multiple of this; 0 keeps none.
        keep_steps: keep the checkpoints of these steps.
        awaited: the steps of the checkpoints that other runs will start from. They are kept, each
            with the checkpoint that was the best one then.
    """

    keep_previous: int = 0
    keep_interval: int = 0
    keep_steps: Collection[int] = ()
    awaited: Callable[[], Collection[int]] = tuple

    def is_permanent(self, step: int) -> bool:
        return step in self.keep_steps or bool(
            self.keep_interval and step % self.keep_interval == 0
        )

    def to_remove(self, steps: Iterable[int], newest: int, protected: Collection[int]) -> list[int]:
        """Return which steps before `newest`, once that is durable, are to be deleted.

        `protected` steps, such as the best, are never deleted.
        """
        older = sorted(step for step in steps if step < newest)
        candidates = older[: max(0, len(older) - self.keep_previous)]
        return [
            step for step in candidates if not self.is_permanent(step) and step not in protected
        ]
