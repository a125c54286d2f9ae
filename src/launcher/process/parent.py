"""A watch over the parent process, which may be killed without a word."""

import os
import threading
import time
from collections.abc import Callable

PAUSE = 1.0
"""Seconds between two looks for the parent."""


def when_parent_ends(parent: int, act: Callable[[], object]) -> None:
    """Call `act` in a thread once this process no longer has the parent with this number.

    A parent that had ended before this call counts, too.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PAUSE)
        act()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
