"""Forced exit: after a signal, a process that makes no progress ends itself.

A main thread that hangs in a collective runs no Python, and so no handler of `launcher.run.signals`. A second thread
learns of signals through the interpreter's wakeup pipe, to which the interpreter writes at once. It ends the process
after the grace period without progress: a rank whose peers are gone, a data source that hangs, a driver that does not
return. The last checkpoint stays valid.
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
from typing import NoReturn

from launcher.run import signals

CODE = 1
"""Exit code: 128 + signal would mean that the state was saved."""
REPORT_TIMEOUT = 30.0
"""Seconds that the callbacks may take: a hanging disk may be the cause."""


Callback = Callable[[int, str], None]


class _State:
    grace: Callable[[int], float | None] | None = None
    signum: int = 0
    since: float = 0.0
    pipe: tuple[int, int] | None = None
    callbacks: list[Callback] = []


_state = _State()


def arm(grace: Callable[[int], float | None]) -> None:
    """From now on, end this process after `grace(signum)` seconds without progress after a signal; None: never.

    Does nothing outside the main thread, where Python delivers no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    _state.grace, _state.signum, _state.since = grace, 0, 0.0
    if signals.received():
        _note_signal(signals.received())
    if _state.pipe is None:
        _state.pipe = os.pipe()
        os.set_blocking(_state.pipe[1], False)
        os.register_at_fork(after_in_child=_leave_to_parent)
        threading.Thread(target=_watch, name="signal-deadline", daemon=True).start()
    signal.set_wakeup_fd(_state.pipe[1], warn_on_full_buffer=False)


def disarm() -> None:
    """No forced exit from now on."""
    _state.grace = None


def progress(ahead: float = 0.0) -> None:
    """Report progress: restart the grace period, `ahead` seconds from now for a wait of known length."""
    _state.since = max(_state.since, time.monotonic() + ahead)


@contextmanager
def on_forced_exit(callback: Callback) -> Iterator[None]:
    """Inside, a forced exit first calls `callback(signum, reason)`, in another thread; the newest callback first. The
    signal is 0 if there was none."""
    _state.callbacks.append(callback)
    try:
        yield
    finally:
        _state.callbacks.remove(callback)


def _leave_to_parent() -> None:
    """In a forked child: its signals are not the run's."""
    try:
        signal.set_wakeup_fd(-1)
    except ValueError:  # forked by another thread
        pass


def _note_signal(signum: int) -> None:
    if not _state.signum:
        _state.signum, _state.since = signum, max(_state.since, time.monotonic())


def _watch() -> None:
    assert _state.pipe is not None
    while True:
        armed = _state.grace
        grace = armed(_state.signum) if _state.signum and armed is not None else None
        if _state.grace is not armed:  # disarmed while `grace` was computed, which may ask SLURM
            continue
        left = None if grace is None else _state.since + grace - time.monotonic()
        if grace is not None and left is not None and left <= 0:
            _exit(grace)
        if select.select([_state.pipe[0]], [], [], left)[0]:
            for signum in os.read(_state.pipe[0], 64):
                if signum in signals.installed():
                    _note_signal(signum)


def _exit(grace: float) -> None:
    name = signal.Signals(_state.signum).name
    force_exit(f"No progress for {grace:g} s after {name}: forced exit. The last checkpoint is valid.")


def force_exit(reason: str) -> NoReturn:
    """End this process at once, from any thread: print where the main thread is and call what `on_forced_exit` has
    registered."""
    reporter = threading.Thread(target=_report, args=(reason,), daemon=True)
    reporter.start()
    reporter.join(REPORT_TIMEOUT)
    for child in multiprocessing.active_children():  # data workers
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
