"""Waits that end: for a condition of other processes, threads or a cluster."""

import time
from collections.abc import Callable
from typing import Any


def wait_for(
    condition: Callable[[], Any], what: str = "it", seconds: float = 300, pause: float = 0.02
) -> Any:
    """The condition's value once it is true."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(pause)
    return value
