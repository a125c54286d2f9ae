"""`sys.exit()` in the user's code."""

from collections.abc import Iterator
from contextlib import contextmanager

from launcher.process import signals


@contextmanager
def exits_are_errors() -> Iterator[None]:
    """Within this context, `sys.exit()` is an error whatever its code, unless a signal ends the
    run.

    Raises:
        RuntimeError: it was called. A command that ended with 0 would be taken for one that has
            trained to its end.
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
