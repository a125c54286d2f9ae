"""An end by force: after a signal, a process that gets on with nothing any more is not waited for without bound.

A main thread that hangs in a collective runs no Python, so not the handlers of `launcher.run.signals` either. A thread
hears of signals through the interpreter's wakeup pipe, which is written to in the very moment they come. It ends the
process once nothing has gone on for the grace: a rank whose peers are gone, a data source that hangs, a full stop in a
driver. The last checkpoint stands.
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

from launcher.run import signals

CODE = 1
"""Exit code: 128 + signal would say that the state has been saved."""
WORDS = 30.0
"""Seconds that telling of it may take: a disk may be what hangs."""


Words = Callable[[int, str], None]


class _State:
    grace: Callable[[int], float | None] | None = None
    heard: int = 0
    since: float = 0.0
    pipe: tuple[int, int] | None = None
    words: list[Words] = []


_state = _State()


def arm(grace: Callable[[int], float | None]) -> None:
    """From now on, end this process when nothing has gone on for `grace(signum)` seconds after a signal; None: never.

    Does nothing outside the main thread, where Python tells of no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    _state.grace, _state.heard, _state.since = grace, 0, 0.0
    if signals.received():
        _hear(signals.received())
    if _state.pipe is None:
        _state.pipe = os.pipe()
        os.set_blocking(_state.pipe[1], False)
        os.register_at_fork(after_in_child=_leave_to_parent)
        threading.Thread(target=_watch, name="signal-deadline", daemon=True).start()
    signal.set_wakeup_fd(_state.pipe[1], warn_on_full_buffer=False)


def disarm() -> None:
    """Nothing is ended by force any more."""
    _state.grace = None


def progress(ahead: float = 0.0) -> None:
    """Something goes on: the grace begins anew, or in `ahead` seconds, for a wait of known length."""
    _state.since = max(_state.since, time.monotonic() + ahead)


@contextmanager
def on_forced_exit(say: Words) -> Iterator[None]:
    """Within, `say(signum, reason)` is called before an end by force, in another thread; the last one given first."""
    _state.words.append(say)
    try:
        yield
    finally:
        _state.words.remove(say)


def _leave_to_parent() -> None:
    """In a forked child: signals that it gets are not the run's."""
    try:
        signal.set_wakeup_fd(-1)
    except ValueError:  # forked by another thread
        pass


def _hear(signum: int) -> None:
    if not _state.heard:
        _state.heard, _state.since = signum, max(_state.since, time.monotonic())


def _watch() -> None:
    assert _state.pipe is not None
    while True:
        grace = _state.grace(_state.heard) if _state.heard and _state.grace is not None else None
        left = None if grace is None else _state.since + grace - time.monotonic()
        if grace is not None and left is not None and left <= 0:
            _end(grace)
        if select.select([_state.pipe[0]], [], [], left)[0]:
            for signum in os.read(_state.pipe[0], 64):
                if signum in signals.installed():
                    _hear(signum)


def _end(grace: float) -> None:
    name = signal.Signals(_state.heard).name
    reason = f"Nothing has gone on for {grace:g} s after {name}: ended by force, the last checkpoint stands."
    teller = threading.Thread(target=_tell, args=(reason,), daemon=True)
    teller.start()
    teller.join(WORDS)
    for child in multiprocessing.active_children():  # data workers
        child.kill()
    os._exit(CODE)


def _tell(reason: str) -> None:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    where = "".join(traceback.format_stack(frame)) if frame is not None else ""
    print(f"{where}{reason}", file=sys.stderr, flush=True)
    for say in reversed(_state.words):
        try:
            say(_state.heard, reason)
        except Exception:
            traceback.print_exc()
