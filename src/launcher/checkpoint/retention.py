"""Which checkpoints stay."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Retention:
    """
    Args:
        keep_previous: this many before the newest.
        keep_interval: every one of a step divisible by this, for ever; 0: none.
        keep_steps: these steps, for ever.
    """

    keep_previous: int = 0
    keep_interval: int = 0
    keep_steps: Collection[int] = ()

    def is_kept(self, step: int) -> bool:
        """Whether it stays for ever."""
        return step in self.keep_steps or bool(self.keep_interval and step % self.keep_interval == 0)

    def to_remove(self, steps: Iterable[int], newest: int, protected: Collection[int] = ()) -> list[int]:
        """Of the checkpoints there are, those to delete once `newest` is durable.

        Args:
            newest: the verified newest; later ones (of a run that was rolled back) are not touched.
            protected: never deleted, like the best.
        """
        older = sorted(step for step in steps if step < newest)
        kept = set(older[len(older) - self.keep_previous :]) if self.keep_previous else set()
        return [step for step in older if step not in kept and not self.is_kept(step) and step not in protected]
