"""The end of a process, without what C++ libraries do then.

torch empties its registry of operators at the exit, one by one, in a tenth of a second. A destructor that meets a
thread of its library may also crash a process whose work is done.
"""

import ctypes
import os

PROFILERS = "LD_PRELOAD", "CUDA_INJECTION64_PATH"
"""Variables by which profilers and the like enter a process. They write their results in exit handlers."""


def skip_exit_handlers() -> None:
    """At the end of this process, skip the exit handlers and destructors of C and C++ that are registered by now. Those
    of libraries that are loaded later run, and so does all that Python does at its end; C's buffers are written.
    Without glibc, and in a process with a profiler (`PROFILERS`), nothing is skipped."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "on_exit") or any(os.environ.get(name) for name in PROFILERS):
        return
    # The handlers run in reverse order: the newest first. _exit gets the exit code as its argument.
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)
