"""Logs the stacks of all ranks when a step takes far longer than others."""

import sys
import threading
import time
import traceback
from collections import deque
from statistics import median
from typing import Any

from launcher.hooks.base import BaseHook, TrainerView
from launcher.run import deadline, ranks
from launcher.types import PositiveFloat, PositiveInt

COLLECT = 10.0
"""Seconds that rank 0 waits for the stacks of the other ranks."""


class WatchdogHook(BaseHook):
    """Watches each step from another thread. If one takes longer than `factor` times the median, every rank logs where
    its threads are, and rank 0's log has the stacks of all of them. Evaluations and saves are not watched.

    Args:
        factor: times the median of the last `window` steps.
        min_seconds: the limit is at least this.
        first_seconds: the limit during the first three steps, which include start-up and compilation.
        window: see `factor`.
        abort: after logging the stacks, end all ranks with exit code 1, so that a scheduler restarts the run from its
            last checkpoint; False: training may continue, and each step is reported once.
    """

    measures = True  # so that its `on_after_step` is called first

    def __init__(
        self,
        factor: PositiveFloat = 10.0,
        min_seconds: PositiveFloat = 60.0,
        first_seconds: PositiveFloat = 1200.0,
        window: PositiveInt = 100,
        abort: bool = False,
    ):
        self.factor, self.min_seconds, self.first_seconds, self.abort = factor, min_seconds, first_seconds, abort
        self.reports = 0
        self._durations: deque[float] = deque(maxlen=window)
        self._watched: tuple[int, float] | None = None
        """The current step, and when it began."""
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def on_ready(self, trainer: TrainerView) -> None:
        self._closed.clear()
        self._thread = threading.Thread(target=self._watch, args=(trainer,), name="watchdog", daemon=True)
        self._thread.start()

    def on_before_step(self, trainer: TrainerView) -> None:
        self._watched = trainer.step, time.monotonic()

    def on_after_step(self, trainer: TrainerView) -> None:
        if self._watched is not None:
            self._durations.append(time.monotonic() - self._watched[1])

    def on_step_boundary(self, trainer: TrainerView) -> None:
        self._watched = None

    def on_evaluation_start(self, trainer: TrainerView) -> None:
        self._watched = None

    def on_close(self, trainer: TrainerView) -> None:
        self._watched = None
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    # ------------------------------------------------------------------------------------------------ in the thread
    def _watch(self, trainer: TrainerView) -> None:
        while not self._closed.wait(min(1.0, self.min_seconds / 4)):
            reason = self._overdue()
            if reason is not None or self._is_called():
                self._report(trainer, reason or "Another rank has reported a step that takes too long.")

    def _overdue(self) -> str | None:
        watched = self._watched
        if watched is None:
            return None
        durations = list(self._durations)
        limit, usual = self.first_seconds, "no other step is known yet"
        if len(durations) >= 3:
            middle = median(durations)
            limit = max(self.min_seconds, self.factor * middle)
            usual = f"the median of the last {len(durations)} is {middle:.3g} s"
        step, since = watched
        if (seconds := time.monotonic() - since) <= limit:
            return None
        self._watched = None  # reported once
        return f"Step {step} has taken {seconds:.3g} s so far; {usual}."

    def _key(self) -> str:
        return f"launcher/stalled-{self.reports}"

    def _is_called(self) -> bool:
        """Whether another rank has reported a stall."""
        return _can_exchange() and _is_set(self._key())

    def _report(self, trainer: TrainerView, reason: str) -> None:
        text, rank = stacks(), ranks.Ranks.from_env().rank
        trainer.logger.error("%s Stacks of rank %d:\n%s", reason, rank, text)
        if _can_exchange():
            store, key = ranks.store(), self._key()
            store.set(key, "")
            store.set(f"{key}/{rank}", text)
            if rank == 0:
                self._log_others(trainer, key)
                store.set(f"{key}/logged", "")
            elif self.abort:
                _wait_for(f"{key}/logged", COLLECT + 2)
        self.reports += 1
        if self.abort:
            deadline.force_exit(f"{reason} hooks.watchdog.abort=true: forced exit. The last checkpoint is valid.")

    def _log_others(self, trainer: TrainerView, key: str) -> None:
        end = time.monotonic() + COLLECT
        for rank in range(1, ranks.Ranks.from_env().world_size):
            if _wait_for(f"{key}/{rank}", end - time.monotonic()):
                trainer.logger.error("Stacks of rank %d:\n%s", rank, ranks.store().get(f"{key}/{rank}").decode())
            else:
                trainer.logger.error("Rank %d does not answer: it has ended, or is not running Python code.", rank)


def _can_exchange() -> bool:
    return ranks.Ranks.from_env().world_size > 1 and ranks.has_met()


def _is_set(key: str) -> bool:
    try:
        return bool(ranks.store().check([key]))
    except Exception:  # rank 0 is gone, and the store with it
        return False


def _wait_for(key: str, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not _is_set(key):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def stacks() -> str:
    """The stack of each thread of this process, the main thread first."""
    frames: dict[int, Any] = sys._current_frames()
    own, main = threading.get_ident(), threading.main_thread().ident
    threads = sorted(threading.enumerate(), key=lambda thread: thread.ident != main)
    return "\n".join(
        f"Thread {thread.name}:\n" + "".join(traceback.format_stack(frames[thread.ident]))
        for thread in threads
        if thread.ident in frames and thread.ident != own
    )
