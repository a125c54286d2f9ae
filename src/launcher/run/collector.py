"""Python's garbage collector while a command starts.

Importing Hydra and torch makes hundreds of thousands of objects that stay. The collector would look at them again and
again while they are made, once more when training begins, and twice at the exit: a third of a short command's CPU time.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.run.quick_exit import skip_exit_handlers

AT_START = 1_000_000
"""More objects than a start makes; one that makes more of them than that is collected."""
_usual: tuple[int, int, int] | None = None
"""The threshold before `defer`; None: it was not called, or `resume` was."""


def defer() -> None:
    """Collect next to nothing until `resume`. For a command of ours, before it imports anything slow."""
    global _usual
    if _usual is None:
        _usual = gc.get_threshold()
        gc.set_threshold(AT_START, *_usual[1:])


def freeze() -> None:
    """Let the collector pass over all objects that exist now, for as long as the process lives: also for the end of a
    command that has built nothing. Does nothing without `defer`, or after `resume`."""
    if _usual is not None:
        gc.freeze()


def resume() -> None:
    """Collect as usual again, unless someone else has set a threshold since. Does nothing without `defer`."""
    global _usual
    if _usual is not None and gc.get_threshold() == (AT_START, *_usual[1:]):
        gc.set_threshold(*_usual)
    _usual = None


@contextmanager
def building() -> Iterator[None]:
    """While the parts of a run are built, for which the compiler may be imported. The modules that are imported before
    are passed over from now on; the parts will be collected as usual. At the exit of a command of ours, the C libraries
    of these modules are passed over too."""
    if _usual is not None:
        skip_exit_handlers()
    freeze()
    try:
        yield
    finally:
        resume()
