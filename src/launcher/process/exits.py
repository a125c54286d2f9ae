"""Handle `sys.exit()` in the user's code."""

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
