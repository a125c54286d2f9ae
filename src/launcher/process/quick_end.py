"""The end of a forked process, like the end of a new interpreter, but nothing is torn down.

Clearing the modules would first copy each page that the process shares with its parent, which takes
as long as the import of torch. So what ends the process is the last of the functions that
`atexit` calls, in reverse order. A program that uses it imports this module before any other that
registers a function there.
"""

import atexit
import ctypes
import gc
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_code: int | None = None
"""The exit code, once it is decided. With None the interpreter ends as always."""


@contextmanager
def quick_end() -> Iterator[None]:
    """Let this process end quickly after the code in the context, the last of its main thread.

    It ends like a new interpreter: its other threads are waited for, functions of `atexit` are
    called, and all output is complete. A KeyboardInterrupt, which ends it by its signal, is left to
    the interpreter.
    """
    global _code
    try:
        yield
    except SystemExit as stop:
        is_number = stop.code is None or isinstance(stop.code, int)
        _code = int(stop.code or 0) & 0xFF if is_number else 1
        raise
    except Exception:
        _code = 1
        raise
    except BaseException:
        # What stays frozen would be reported as lost.
        gc.unfreeze()
        raise
    _code = 0


@atexit.register
def _end() -> None:
    if _code is None:
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
    # The interpreter fails at it too, reports it, and has a code of its own for it.
    except (OSError, ValueError):
        return
    # Replaced streams, and files that nobody has closed.
    for each in (sys.__stdout__, sys.__stderr__, *gc.get_objects()):
        if issubclass(type(each), io.IOBase):
            with suppress(OSError, ValueError):
                each.flush()
    # The streams of C libraries.
    ctypes.CDLL(None).fflush(None)
    os._exit(_code)
