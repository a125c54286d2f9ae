"""The batches that the loop takes from a data loader, epoch after epoch, and the position among them."""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from launcher.data.plain import PlainLoader, resumable, set_epoch
from launcher.errors import TrainingError
from launcher.hooks.base import TrainState
from launcher.run import signals


class Batches:
    """The loader's batches, endlessly. `source` is the loader itself, or a wrapper that knows the position in it."""

    def __init__(self, loader: Any, logger: logging.Logger):
        self.loader, self.source = loader, resumable(loader, logger)
        self._plain = self.source if isinstance(self.source, PlainLoader) else None
        self._is_interruptible = self._plain is None or self._plain.interruptible
        self._counts_samples = False
        self._iterator: Iterator[Any]
        self._before: tuple[int | None, int | None] = None, None

    def start(self, state: TrainState) -> None:
        """Begin to iterate. A resume has set the position before."""
        self._state = state
        self._counts_samples = hasattr(self.loader, "samples")
        if state.epoch:
            set_epoch(self.loader, state.epoch)
        self._open()

    def _open(self) -> None:
        self._iterator = iter(self.source)
        self._next: Callable[[], Any] = self._iterator.__next__

    def next(self, data_time: list[float], may_interrupt: bool) -> Any:
        """The next batch; how long it took is appended to `data_time`.

        Args:
            may_interrupt: a signal may end the wait, since nothing has been computed since the last boundary.
        Raises:
            signals.Interrupted: a signal has ended the wait.
            TrainingError: the loader has no batch.
        """
        start = time.perf_counter()
        try:
            batch = signals.wait_for(self._next) if may_interrupt and self._is_interruptible else self._next()
        except StopIteration:
            batch = self._first_of_next_epoch()
        data_time.append(time.perf_counter() - start)
        return batch

    def _first_of_next_epoch(self) -> Any:
        self._state.epoch += 1
        set_epoch(self.loader, self._state.epoch)
        self._open()
        try:
            return self._next()
        except StopIteration:
            raise TrainingError("The data loader has no batch: its dataset is empty.") from None

    def mark(self) -> None:
        """Note the position, for `rewind`."""
        samples = self.loader.samples if self._counts_samples else None
        self._before = samples, None if self._plain is None else self._plain.consumed

    def rewind(self) -> None:
        """Return to the noted position: the loader may have counted a batch just when a signal came."""
        samples, consumed = self._before
        if samples is not None:
            self.loader.samples = samples
        if self._plain is not None and consumed is not None:
            self._plain.consumed = consumed

    def close(self) -> None:
        if hasattr(self._iterator, "close"):
            self._iterator.close()  # it may own worker processes
