"""The time of an attempt, from the work on the run, and its evaluations and saves."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from launcher.process.process_id import process_start

_first = True
_first_line: float | None = None
"""When the first line of a command was reached, until the first attempt has asked."""
_requested: float | None = None
"""When this process was requested, if another one has imported for it before it was forked."""


class PhaseTimes:
    """Seconds of this process by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: set[str] = set()

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time in this context to `name`, once if a context contains another."""
        if name in self._open:
            yield
            return
        self._open.add(name)
        began = time.perf_counter()
        try:
            yield
        finally:
            self._open.discard(name)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


def launch_time(environment: Any = os.environ) -> float:
    """Return the time, in seconds since the epoch, at which the work on a run began.

    It is the start of the SLURM job, else of this process, or when a forked one was requested; for
    a later run in this process, now.
    """
    global _first
    now, was_first = time.time(), _first
    _first = False
    began = environment.get("SLURM_JOB_START_TIME", "")
    if not was_first:
        return now
    if began.isdecimal():
        return min(float(began), now)
    return now - _age() if _requested is None else _requested


def note_request(moment: float) -> None:
    """Note when this forked process was requested, in seconds since the epoch."""
    global _requested
    _requested = moment


def note_first_line(moment: float) -> None:
    """Note when this command has reached its first line, in seconds since the epoch."""
    global _first_line
    _first_line = moment


def python_time() -> float:
    """Return the seconds in which Python itself started, before the first line of the command.

    It is 0 for a later run in this process, and where no command was noted: a forked process finds
    Python started.
    """
    global _first_line
    if _first_line is None:
        return 0.0
    spent, _first_line = _first_line - (time.time() - _age()), None
    return max(0.0, spent)


def _age() -> float:
    if sys.platform != "linux":
        return 0.0
    ticks = process_start(os.getpid())
    if ticks is None:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK"))
