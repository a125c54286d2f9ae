"""The end of a process, and `sys.exit()` in the user's code."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.process import signals


@contextmanager
def exits_are_errors() -> Iterator[None]:
    """Make `sys.exit()` a RuntimeError within the context, whatever its code.

    A command that ended with 0 would look as if it had trained to its end. The exit after a signal
    stays one.
    """
    try:
        yield
    except signals.SignalExit:
        raise
    except SystemExit as error:
        code = "" if error.code is None else repr(error.code)
        raise RuntimeError(
            f"the code of the run called sys.exit({code}); raise an exception instead"
        ) from error


def begin_exit() -> None:
    """Ignore signals from now on, and let the workers of torch.compile end by themselves.

    At exit torch waits for them, which takes seconds on a GPU.
    """
    signals.ignore()
    inductor = sys.modules.get("torch._inductor.async_compile")
    if inductor is not None:
        # Once they were told to end, torch does not wait for them again.
        threading.Thread(target=inductor.shutdown_compile_workers, daemon=True).start()
