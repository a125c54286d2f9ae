"""Prints the stacks of all threads when a step takes far longer than others."""

import faulthandler
import threading
import time
from collections import deque
from statistics import median
from typing import ClassVar

from launcher.config.schema.matters_from import never
from launcher.hooks.base import BaseHook
from launcher.hooks.view import TrainerView
from launcher.process import deadline
from launcher.types import PositiveFloat, PositiveInt, Seconds

STDERR = 2
MIN_STEPS = 3
"""Number of steps after which the median is known well enough."""
SECONDS_TO_PRINT = 1.0
"""Seconds from printing the stacks to a forced exit, which also ends the ranks that wait for this
one."""


class WatchdogHook(BaseHook):
    """Prints the stacks of all threads of a rank whose step hangs.

    A step hangs if it takes longer than `factor` times the median. The stacks go to the rank's
    standard error, even if the interpreter is blocked. Ranks wait for each other, so a step that
    hangs on one rank is printed by all of them. Evaluations and saves are not watched.

    Args:
        factor: the limit, as a multiple of the median of the last `window` steps.
        min_seconds: minimum of the limit.
        first_seconds: the limit during the first three steps, which include start-up and
            compilation.
        window: the number of steps of the median.
        abort: end the rank then with exit code 1, so that a scheduler restarts the run from its
            last checkpoint. With False, training may continue.
    """

    changes_numbers = False
    provides = ()
    matters_from: ClassVar = {"*": never}

    def __init__(
        self,
        factor: PositiveFloat = 10.0,
        min_seconds: Seconds = 60.0,
        first_seconds: Seconds = 1200.0,
        window: PositiveInt = 100,
        abort: bool = False,
    ):
        self.factor = factor
        self.abort = abort
        self.min_seconds = min_seconds
        self.first_seconds = first_seconds
        self.limit = first_seconds
        """Seconds that the current step may take."""
        self._durations: deque[float] = deque(maxlen=window)
        self._began: float | None = None
        self._exit: threading.Timer | None = None

    def on_before_step(self, trainer: TrainerView) -> None:
        self.limit = self.first_seconds
        if len(self._durations) >= MIN_STEPS:
            self.limit = max(self.min_seconds, self.factor * median(self._durations))
        self._began = time.monotonic()
        faulthandler.dump_traceback_later(self.limit, file=STDERR)
        if self.abort:
            reason = (
                f"Step {trainer.step} has taken more than {self.limit:.3g} s; {self._usual()}."
                " hooks.watchdog.abort=true: forced exit. The last checkpoint is valid."
            )
            seconds = self.limit + SECONDS_TO_PRINT
            self._exit = threading.Timer(seconds, deadline.force_exit, [reason])
            self._exit.daemon = True
            self._exit.start()

    def on_after_step(self, trainer: TrainerView) -> None:
        if self._began is None:
            return
        seconds = time.monotonic() - self._began
        if seconds > self.limit:
            text = "Step %d took %.3g s; %s. Standard error shows where it was after %.3g s."
            trainer.logger.error(text, trainer.step, seconds, self._usual(), self.limit)
        self._durations.append(seconds)

    def on_step_boundary(self, trainer: TrainerView) -> None:
        self._stop()

    def on_evaluation_start(self, trainer: TrainerView) -> None:
        self._stop()

    def on_close(self, trainer: TrainerView) -> None:
        self._stop()

    def _usual(self) -> str:
        if len(self._durations) < MIN_STEPS:
            return "the time of other steps is not known yet"
        return f"the median of the last {len(self._durations)} is {median(self._durations):.3g} s"

    def _stop(self) -> None:
        if self._began is not None:
            faulthandler.cancel_dump_traceback_later()
            self._began = None
        if self._exit is not None:
            self._exit.cancel()
            self._exit = None
