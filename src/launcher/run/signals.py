"""Signals become a flag; what follows from it happens at a step boundary.

A handler notes the first signal and its time and does no more. The one exception is a process that waits for its next
batch with nothing computed since the last boundary: there the handler ends the wait (`waiting`), since a stalled data
source would otherwise hold the flag unseen for ever. `python -m launcher` installs the handlers before anything heavy
is imported: an import of torch takes seconds, and a signal in it must not kill the process unheard.
"""

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class Stop(SystemExit):
    """Ends the process after a signal, once the state is durable; `code` is 128 + signal unless told otherwise."""

    def __init__(self, signum: int, code: int | None = None):
        super().__init__(128 + signum if code is None else code)
        self.signum = signum


class Interrupted(Exception):
    """Raised inside `waiting` alone, when a signal arrives: the wait for data is over."""


class _State:
    received: int = 0
    received_at: float = 0.0
    waiting: bool = False
    owner: int = 0
    installed: frozenset[int] = frozenset()


_state = _State()


def note(signum: int) -> None:
    """Set the flag, for a signal that was taken without a handler; the first one stands."""
    if not _state.received:
        _state.received = signum
        _state.received_at = time.monotonic()


def _note(signum: int, frame: FrameType | None) -> None:
    if os.getpid() != _state.owner:  # a forked child (a data worker) shares the handler, not the run
        return
    note(signum)
    if _state.waiting:
        _state.waiting = False
        raise Interrupted


def install(signums: Iterable[int] = HANDLED) -> None:
    """Let the handled signals set the flag. Keeps SIGINT ignored where the shell has started us so (`command &`).

    Does nothing outside the main thread, where Python allows no handlers (a trainer driven by a notebook's worker).
    """
    if threading.current_thread() is not threading.main_thread():
        return
    _state.owner = os.getpid()
    for signum in signums:
        if signum == signal.SIGINT and signal.getsignal(signum) is signal.SIG_IGN:
            continue
        signal.signal(signum, _note)
        _state.installed |= {signum}


def installed() -> bool:
    return bool(_state.installed)


def taken() -> frozenset[int]:
    """The signals that set the flag."""
    return _state.installed


def received() -> int:
    """The first handled signal of this process, 0 while there is none."""
    return _state.received


def received_at() -> float:
    """When it came, on the clock of `time.monotonic()`."""
    return _state.received_at


def check() -> None:
    """Leave at once if a signal has come; for the phases before training, when there is nothing to save.

    Raises:
        Stop: a signal has been received.
    """
    if _state.received:
        raise Stop(_state.received)


def forget() -> None:
    """Drop the flag; for tests and for a process that goes on to another run."""
    _state.received = 0
    _state.received_at = 0.0


class _Waiting:
    """Reusable, since a generator's context would cost a step more than the flag does."""

    def __enter__(self) -> None:
        _state.waiting = True
        if _state.received:
            _state.waiting = False
            raise Interrupted

    def __exit__(self, *exc: object) -> None:
        _state.waiting = False


waiting = _Waiting()
"""`with waiting:` a signal (also one already noted) ends the wait by raising `Interrupted`."""


def ignore() -> None:
    """From now on signals change nothing: the outcome is decided, and an interpreter that ends would die of one."""
    for signum in _state.installed:
        signal.signal(signum, signal.SIG_IGN)


def ignore_in_child() -> None:
    """For a child process (a data worker): its parent alone answers signals, also those sent to the whole group."""
    for signum in {*HANDLED, *_state.installed}:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)


@contextmanager
def blocked() -> Iterator[None]:
    """Hold the handled signals back while children start: they inherit the mask, and reach `ignore_in_child` alive."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
