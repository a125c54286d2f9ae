"""The parent process: it may be killed, and torchrun kills its ranks."""

import ctypes
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping

from launcher.process import signals

PR_SET_PDEATHSIG = 1
PAUSE = 1.0
"""Seconds between two looks for the parent."""
SHUTDOWN_TIMEOUT, DEFAULT_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 30
"""The variable with the seconds between torchrun's SIGTERM and SIGKILL, and its default."""


def follow_parent(parent: int) -> None:
    """Lift the block of signals that the parent has set, and get a SIGTERM when it ends."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*signals.HANDLED, signal.SIGCHLD})
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        # The parent may have ended before the call, which then has no effect.
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
    else:
        when_parent_ends(parent, lambda: os.kill(os.getpid(), signal.SIGTERM))


def when_parent_ends(parent: int, act: Callable[[], object]) -> None:
    """Call `act` in a thread once this process has lost this parent, also if it has already."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PAUSE)
        act()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def early_kill(grace: float | None, env: Mapping[str, str] = os.environ) -> str | None:
    """Return a warning if torchrun kills this rank before `grace` seconds after a signal."""
    timeout = env.get(SHUTDOWN_TIMEOUT, str(DEFAULT_TIMEOUT))
    if "TORCHELASTIC_RUN_ID" not in env or not timeout.isdecimal():
        return None
    allowed = "any time"
    seconds = "<seconds>"
    if grace is not None:
        if int(timeout) >= grace:
            return None
        allowed = f"{grace:g} s"
        seconds = str(math.ceil(grace))
    return (
        f"torchrun kills its ranks {timeout} s after a SIGTERM, but dispatch.grace gives a step and"
        f" its save {allowed}. Start torchrun with {SHUTDOWN_TIMEOUT}={seconds} in the environment,"
        " or their steps are lost."
    )
