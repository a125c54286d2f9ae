"""Waits of the main thread that a signal ends, whenever it arrives.

Python runs a signal's handler in the main thread, between two of its instructions. A wait that has
no end hides a signal that arrives just before it, or that another thread receives: the handler runs
only after the wait. So these look again and again.
"""

import subprocess
import time
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
PAUSE = 0.05
"""Seconds between two looks."""


def wait_for_process(process: subprocess.Popen[Any]) -> int:
    """Wait for the end of a process, and return its exit code."""
    while (code := process.poll()) is None:
        time.sleep(PAUSE)
    return code


def wait_for_future(future: Future[T]) -> T:
    """Wait for the result of a future, and return it."""
    while not future.done():
        time.sleep(PAUSE)
    return future.result()
