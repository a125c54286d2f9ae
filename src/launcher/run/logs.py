"""Log records on the screen and in the run's files."""

import logging
import os
import sys
from pathlib import Path
from typing import Any, TextIO

FORMAT = "%(asctime)s %(levelname)-7s %(message)s"

_console: Any = None


def console() -> Any:
    """The one rich console, so that a live bar and log lines share the terminal."""
    global _console
    if _console is None:
        from rich.console import Console

        _console = Console()
    return _console


class _TerminalHandler(logging.Handler):
    """Prints through the rich console, above a live bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            console().print(self.format(record), markup=False, highlight=False, soft_wrap=True)
        except Exception:
            self.handleError(record)


class _Undisturbed:
    """A full disk, a reader that has gone: training goes on, the other handler has every line, and a traceback for each
    would bury them."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)  # type: ignore[misc]


class _FileHandler(_Undisturbed, logging.FileHandler):
    pass


class _StreamHandler(_Undisturbed, logging.StreamHandler[TextIO]):
    pass


def setup_logging(file: Path | None, rank: int = 0) -> None:
    """Rank 0 logs to the screen and to `file` (None: that alone); others to their file, and warnings to the screen.

    A rank that the command has started itself leaves the screen to rank 0: all that it prints goes to its file too.
    Calling it again replaces what it set up before: the runs of one sweep each have their own file.
    """
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if getattr(handler, "_of_launcher", False)]:
        root.removeHandler(old)
        old.close()
    screen: logging.Handler = _TerminalHandler() if sys.stdout.isatty() else _StreamHandler(sys.stdout)
    handlers, is_diverted = [screen], False
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        if is_diverted := bool(rank) and "LAUNCHER_PARENT" in os.environ:
            _divert(file)
        else:
            handlers.append(_FileHandler(file, delay=True))
    screen.setLevel(logging.INFO if rank == 0 or is_diverted else logging.WARNING)
    for handler in handlers:
        prefix = f"[rank {rank}] " if rank else ""
        handler.setFormatter(logging.Formatter(FORMAT.replace("%(message)s", prefix + "%(message)s"), "%H:%M:%S"))
        handler._of_launcher = True  # type: ignore[attr-defined]
        root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)


def _divert(file: Path) -> None:
    """Let standard output and standard error, those of native code too, go to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(target, number)
    os.close(target)
