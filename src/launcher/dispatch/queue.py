"""The queue of jobs in slots: of a sweep, and of a search."""

from collections.abc import Callable
from typing import Protocol

from launcher.process import signals


class Runner(Protocol):
    """Runs jobs by number."""

    def running(self) -> set[int]:
        """Return the jobs that were started and that `reap` has not returned."""

    def reap(self) -> dict[int, int]:
        """Return the exit codes of the jobs that have ended since the last call."""


def run_queue(
    runner: Runner,
    slots: int,
    start_next: Callable[[], bool],
    look: Callable[[dict[int, int]], object],
    sleep: Callable[[], object],
    is_awaited: Callable[[], bool] = lambda: False,
) -> None:
    """Keep the slots busy until no job runs or is awaited.

    Args:
        runner: runs the jobs.
        slots: maximum number of jobs at a time.
        start_next: starts a job, and returns whether there was one to start.
        look: gets the exit codes of jobs that have ended.
        sleep: waits until the next look.
        is_awaited: whether jobs of other processes are awaited.
    Raises:
        signals.SignalExit: a signal has come.
    """
    while True:
        signals.check()
        look(runner.reap())
        while len(runner.running()) < slots and start_next():
            signals.check()
        if not runner.running() and not is_awaited():
            return
        sleep()
