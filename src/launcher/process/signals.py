"""Signal handlers that set a flag, on which the run acts at a step boundary.

A handler only records the first signal and its time. There is one exception: while the process
waits for its next batch and has computed nothing since the last boundary, it ends the wait
(`wait_for`), since a stalled data source would hide the flag forever. `python -m launcher` installs
the handlers before it imports torch, which takes seconds.

Handlers belong to the process, the flag to a run. So the trainer that a signal stops clears it
(`forget`), and a later run in the same process starts without it.

A forked child has Python's default actions again: it is the user's own process (of a
`multiprocessing.Pool`, for example), which others end by a signal. Data workers ignore the signals
(`ignore_in_child`), since the trainer needs their batches until it has saved.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
HANDLED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
LEFT_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that stay ignored if they are ignored at the start, by `nohup` or by a shell that starts
us in the background."""


class SignalExit(SystemExit):
    """Ends the process after a signal, with 128 + signal, once the state is durable."""

    is_reported = False
    """True once a message has said where the run stopped."""

    def __init__(self, signum: int, code: int | None = None):
        super().__init__(128 + signum if code is None else code)
        self.signum = signum
        self.received_at = _state.received_at or time.monotonic()


class Interrupted(BaseException):
    """Raised only inside `wait_for`, when a signal arrives.

    It is not an `Exception`, since a dataset may replace samples whose reading raises one.
    """


@dataclass
class _State:
    received: int = 0
    received_at: float = 0.0
    waiting: bool = False
    on_first: Callable[[int], None] | None = None
    installed: frozenset[int] = frozenset()
    of_parent: frozenset[int] = frozenset()
    """The signals that the process handled from which this one was forked."""


class _Fork(threading.local):
    """A fork that a thread makes."""

    mask: Iterable[int] = ()
    """The signals that the thread has blocked before."""


_state = _State()
_fork = _Fork()
_is_at_fork = False


def note(signum: int) -> None:
    """Set the flag for a signal that was received without a handler. The first signal counts."""
    if not _state.received:
        _state.received = signum
        _state.received_at = time.monotonic()


def _note(signum: int, frame: FrameType | None) -> None:
    if not _state.received and _state.on_first is not None:
        _state.on_first(signum)
    note(signum)
    if _state.waiting:
        # A second signal must not interrupt the cleanup that this exception starts.
        _state.waiting = False
        raise Interrupted


def install(signums: Iterable[int] = HANDLED) -> dict[int, object]:
    """Let these signals set the flag; return the previous handlers, for `restore`.

    Does nothing outside the main thread, where Python allows no handlers.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is not threading.main_thread():
        return before
    _register_at_fork()
    for signum in signums:
        if is_left_ignored(signum) or signum in _state.installed:
            continue
        before[signum] = signal.signal(signum, _note)
        _state.installed |= {signum}
    return before


def on_first(report: Callable[[int], None]) -> None:
    _state.on_first = report


def restore(before: dict[int, Any]) -> None:
    for signum, handler in before.items():
        signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        _state.installed -= {signum}


def is_left_ignored(signum: int) -> bool:
    return signum in LEFT_IGNORED and signal.getsignal(signum) is signal.SIG_IGN


def handled_signals() -> frozenset[int]:
    return _state.installed


def first_signal() -> int:
    """Return the first handled signal of this process, or 0."""
    return _state.received


def check() -> None:
    """Exit after a signal, in the phases before training, when there is nothing to save."""
    if _state.received:
        raise SignalExit(_state.received)


def check_early() -> None:
    """Exit after a signal, see `check`, with a message."""
    try:
        check()
    except SignalExit as stop:
        report_early(stop)
        raise


def report_early(stop: SignalExit) -> None:
    """Say that a signal ended a command before it began, unless something was said."""
    if not stop.is_reported:
        stop.is_reported = True
        name = signal.Signals(stop.signum).name
        text = f"Stopped by {name} before it began; the same command starts it again."
        print(text, file=sys.stderr)


def forget() -> None:
    _state.received = 0
    _state.received_at = 0.0


def wait_for(next_batch: Callable[[], T]) -> T:
    """Call `next_batch`, or raise `Interrupted` for a signal, also if it was received before."""
    # In this order: a signal between the check and the call must end the wait too.
    _state.waiting = True
    try:
        if _state.received:
            raise Interrupted
        batch = next_batch()
        if not _state.waiting:
            # A dataset has caught the exception, and may have replaced the sample.
            raise Interrupted
        return batch
    finally:
        _state.waiting = False


def ignore() -> None:
    """Ignore signals, which would kill the interpreter while it exits with a decided outcome."""
    for signum in _state.installed:
        signal.signal(signum, signal.SIG_IGN)


def ignore_in_child() -> None:
    """Ignore signals in a data worker, whose parent responds to signals of the group."""
    _ignore({*HANDLED, *_state.installed, *_state.of_parent})


def ignore_in_worker(parent: int) -> None:
    """Ignore signals like `ignore_in_child`, but let a SIGTERM of the parent end this process.

    Only Linux says who has sent a signal. Elsewhere each SIGTERM ends it.
    """
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_by, args=(parent,), name="parent-watch", daemon=True).start()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _ignore({*HANDLED, *_state.installed, *_state.of_parent} - {signal.SIGTERM})
    if sys.platform != "linux":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _end_by(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)


def _ignore(signums: set[int]) -> None:
    # Ignored first: a signal that is pending behind the mask is then dropped.
    for signum in signums:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signums)


@contextmanager
def block() -> Iterator[None]:
    """Block the handled signals while children start, which inherit it until `ignore_in_child`."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {*HANDLED, *_state.installed})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def _register_at_fork() -> None:
    """Let forked children have the default actions, from the first `install` on."""
    global _is_at_fork
    if not _is_at_fork:
        _is_at_fork = True
        os.register_at_fork(
            before=_before_fork, after_in_parent=_after_fork, after_in_child=_begin_child
        )


def _before_fork() -> None:
    """Block the handled signals, so that a child that is signalled at once does not lose one.

    Python's own handler of SIGINT loses it too.
    """
    _fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _state.installed - {signal.SIGINT})


def _after_fork() -> None:
    """Lift the block in the parent. A signal that came meanwhile sets the flag.

    Python drops exceptions here, so a wait that has forked (`wait_for`) is not ended by this
    signal, but by its batch, a second signal or the grace period.
    """
    is_waiting = _state.waiting
    _state.waiting = False
    signal.pthread_sigmask(signal.SIG_SETMASK, _fork.mask)
    _state.waiting = is_waiting


def _begin_child() -> None:
    for signum in _state.installed:
        is_interrupt = signum == signal.SIGINT
        signal.signal(signum, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
    _state.of_parent |= _state.installed
    _state.installed = frozenset()
    _state.on_first = None
    _state.waiting = False
    forget()
    signal.pthread_sigmask(signal.SIG_SETMASK, _fork.mask)
