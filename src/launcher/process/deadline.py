"""Forced exit: a process that makes no progress after a signal ends itself.

A main thread that hangs in a collective runs no Python, and so no handler of
`launcher.process.signals`. A second thread reads signals from the interpreter's wakeup pipe. It
ends the process after a grace period without progress, or shortly before a scheduler kills it. The
last checkpoint stays valid.

The main thread may finish its save meanwhile, and end the process too. Once a forced exit has
begun, `disarm` and the end of each `on_forced_exit` context never return, so only one of them does.
"""

import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from launcher.process import signals

CODE = 1
"""Exit code of a forced exit. (128 + signal means that the state was saved.)"""
REPORT_TIMEOUT = 30.0
"""Seconds that the callbacks may take, since a hanging disk may be the cause."""
RETRY_SECONDS = 2.0
"""Seconds until a scheduler that did not know the job's end is queried again."""

Callback = Callable[[int, str], None]
SignalCallback = Callable[[int], None]


@dataclass(frozen=True, eq=False)
class _Limits:
    grace: float | None
    seconds_left: Callable[[], float | None] | None


class _State:
    limits: _Limits | None = None
    lock = threading.RLock()
    """Held from the beginning of a forced exit to the end of the process."""
    signum: int = 0
    received_at: float = 0.0
    since: float = 0.0
    end: float | None = None
    asks: bool = False
    pipe: tuple[int, int] | None = None
    callbacks: list[Callback] = []
    on_signal: SignalCallback | None = None


_state = _State()


def arm(grace: float | None, seconds_left: Callable[[], float | None] | None = None) -> None:
    """End this process after `grace` seconds without progress after a signal (None: never).

    At the latest it ends after `seconds_left()`, which returns when a scheduler will kill it (None:
    not known). Does nothing outside the main thread, where Python delivers no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    _state.limits = _Limits(grace, seconds_left)
    _state.signum = 0
    _state.since = 0.0
    _state.end = None
    if signals.first_signal():
        _note_signal(signals.first_signal())
    if _state.pipe is None:
        _state.pipe = os.pipe()
        # Python requires this of a wakeup descriptor: a handler must never block.
        os.set_blocking(_state.pipe[1], False)
        os.register_at_fork(after_in_child=_leave_to_parent)
        threading.Thread(target=_watch, name="signal-deadline", daemon=True).start()
    else:
        # A zero byte is no signal: it makes the watcher read the new limits.
        os.write(_state.pipe[1], b"\0")
    signal.set_wakeup_fd(_state.pipe[1], warn_on_full_buffer=False)


def disarm() -> None:
    """Prevent a forced exit. One that has begun ends the process before this returns."""
    with _state.lock:
        _state.limits = None


def progress(ahead: float = 0.0) -> None:
    """Restart the grace period, after a wait of at most `ahead` seconds from now.

    Progress ends a wait that was announced before.
    """
    _state.since = time.monotonic() + ahead


@contextmanager
def on_forced_exit(callback: Callback) -> Iterator[None]:
    """Let a forced exit within the context first call `callback(signum, reason)`.

    It is called in another thread, the newest callback first. `signum` is 0 without a signal.
    """
    _state.callbacks.append(callback)
    try:
        yield
    finally:
        with _state.lock:
            _state.callbacks.remove(callback)


@contextmanager
def on_signal(callback: SignalCallback) -> Iterator[None]:
    """Let the first signal in this context call `callback(signum)` at once, in its own thread."""
    _state.on_signal = callback
    try:
        yield
    finally:
        _state.on_signal = None


def _leave_to_parent() -> None:
    try:
        signal.set_wakeup_fd(-1)
    # A thread other than the main one has forked this process.
    except ValueError:
        pass


def _note_signal(signum: int) -> None:
    # SLURM may have shortened the time limit with each signal.
    _state.asks = True
    if not _state.signum:
        _state.signum, _state.received_at = signum, time.monotonic()
        _state.since = max(_state.since, _state.received_at)
        if _state.on_signal is not None:
            threading.Thread(target=_state.on_signal, args=(signum,), daemon=True).start()


def _watch() -> None:
    assert _state.pipe is not None
    while True:
        if select.select([_state.pipe[0]], [], [], _check())[0]:
            for signum in os.read(_state.pipe[0], 64):
                if signum in signals.handled_signals():
                    _note_signal(signum)


def _check() -> float | None:
    """Exit if it is time; else return the seconds until the next check, None without a signal."""
    limits = _state.limits
    if limits is None or not _state.signum:
        return None
    pause = None
    if limits.seconds_left is not None and _state.asks:
        # Asking for the time left may take long, and `disarm` may be called meanwhile.
        left = limits.seconds_left()
        _state.asks = left is None
        if left is None:
            pause = RETRY_SECONDS
        else:
            _state.end = time.monotonic() + left
    with _state.lock:
        if _state.limits is not limits:
            return 0.0
        name = signal.Signals(_state.signum).name
        now = time.monotonic()
        if limits.grace is not None and now >= _state.since + limits.grace:
            _exit(f"No progress for {limits.grace:g} s after {name}")
        if _state.end is not None and now >= _state.end:
            _exit(
                f"Still running {now - _state.received_at:.0f} s after {name}, when the job was"
                " about to be killed"
            )
        ends = [
            None if limits.grace is None else _state.since + limits.grace - now,
            _state.end and _state.end - now,
        ]
    return min((seconds for seconds in (*ends, pause) if seconds is not None), default=None)


def _exit(reason: str) -> NoReturn:
    force_exit(f"{reason}: forced exit. The last checkpoint is valid.")


def force_exit(reason: str) -> NoReturn:
    """Print the main thread's stack, run the callbacks and end this process, from any thread."""
    # The lock is held until the process ends.
    _state.lock.acquire()
    reporter = threading.Thread(target=_report, args=(reason,), daemon=True)
    reporter.start()
    reporter.join(REPORT_TIMEOUT)
    end_process()


def end_process() -> NoReturn:
    """End this process and its data workers at once, from any thread."""
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(CODE)


def _report(reason: str) -> None:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    where = "".join(traceback.format_stack(frame)) if frame is not None else ""
    print(f"{where}{reason}", file=sys.stderr, flush=True)
    for callback in reversed(_state.callbacks):
        try:
            callback(_state.signum, reason)
        except Exception:
            traceback.print_exc()
