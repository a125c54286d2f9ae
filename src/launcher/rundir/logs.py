"""Log records on the screen and in the run's files."""

import errno
import io
import logging
import os
import select
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from launcher.process.files import find_unused_name
from launcher.process.process_id import PARENT, RANK

FORMAT = "%(asctime)s %(levelname)-7s %(message)s"

LEVEL_STYLES = {"WARNING": "yellow", "ERROR": "bold red", "CRITICAL": "bold red"}


@cache
def console() -> Any:
    """Return the process's one rich console: the live bar and log lines share the terminal."""
    from rich.console import Console

    return Console()


class _Terminal(io.TextIOWrapper):
    """A terminal that may be closed while the run saves (SIGHUP): failed writes are ignored."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def prepare_output() -> None:
    """Make standard streams safe to print to.

    A closed stream (`>&-`) becomes the null device before another file can get its number. A
    warning of Hydra 1.4 about configurations from strangers is hidden, since `_target_` is the only
    registry here and names the user's own code.
    """
    warnings.filterwarnings(
        "ignore", r"hydra\.utils\.instantiate\(\) resolved _target_=", UserWarning
    )
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # Takes the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
        stream = getattr(sys, name)
        if number and stream.isatty() and hasattr(stream, "buffer"):
            setattr(
                sys,
                name,
                _Terminal(stream.buffer, stream.encoding, stream.errors, line_buffering=True),
            )


@contextmanager
def ending_with_reader() -> Iterator[None]:
    """Exit without a traceback if the output cannot be written.

    If its reader closes the pipe (`| head`), exit quietly, with SIGPIPE's code.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # A failed write may have left nothing to flush.
        probe = "\n" if error.errno == errno.ENOSPC else ""
        broken = [stream for stream in (sys.stdout, sys.stderr) if _is_broken(stream, probe)]
        if not broken:
            # Another pipe or file broke.
            raise
        # The interpreter flushes them at its end.
        for stream in broken:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if isinstance(error, BrokenPipeError):
            raise SystemExit(128 + signal.SIGPIPE) from None
        print(f"The output cannot be written ({error.strerror}).", file=sys.stderr)
        raise SystemExit(1) from None


def _is_broken(stream: TextIO, probe: str) -> bool:
    poll = select.poll()
    try:
        stream.write(probe)
        stream.flush()
        # Only errors are polled.
        poll.register(stream, 0)
    # The stream is closed, or has no file, as in a notebook.
    except ValueError:
        return False
    except OSError:
        return True
    return any(flags & (select.POLLERR | select.POLLHUP) for _, flags in poll.poll(0))


def announce_imports(what: str = "Loading torch") -> None:
    """Print a line on a terminal before imports that take seconds, unless they are done."""
    if "torch" not in sys.modules and sys.stdout.isatty() and os.environ.get(RANK, "0") == "0":
        setup_logging(None)
        logging.getLogger("launcher").info("%s.", what)


def file_only(logger: logging.Logger, line: str) -> None:
    """Log a line to the file only, since a live bar shows the same on the screen."""
    if any(isinstance(handler, _TerminalHandler) for handler in logging.getLogger().handlers):
        logger.info(line, extra={"file_only": True})


class _TerminalHandler(logging.Handler):
    """Prints through the rich console, above a live bar."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "file_only", False):
            return
        try:
            style = LEVEL_STYLES.get(record.levelname)
            line = self.format(record)
            console().print(line, style=style, markup=False, highlight=False, soft_wrap=True)
        except Exception:
            self.handleError(record)


class _IgnoresOSErrors:
    """Handler that ignores a full disk or a closed pipe, since training continues."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)  # type: ignore[misc]


class _Keeping(logging.Handler):
    """A handler that keeps records in memory for a file that is not to be written yet."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class _FileHandler(_IgnoresOSErrors, logging.FileHandler):
    def emit(self, record: logging.LogRecord) -> None:
        # The base class opens the file outside of its own `try`.
        with suppress(OSError):
            super().emit(record)


class _StreamHandler(_IgnoresOSErrors, logging.StreamHandler[TextIO]):
    pass


def setup_logging(file: Path | None, rank: int = 0, keep: bool = False) -> None:
    """Set up the log of a rank, in place of the previous call's handlers.

    Rank 0 logs to the screen, and to `file` unless that is None. Other ranks log to their file, and
    warnings to the screen. A rank that our own command launched leaves the screen to rank 0, and
    its file gets everything it prints.

    Args:
        file: the log of rank 0, next to which the other ranks have theirs.
        rank: this process among all.
        keep: also keep the lines in memory, for the file that the next call names. A launch that is
            rejected must not write a log.
    """
    records = [record for old in _remove_handlers() for record in getattr(old, "records", ())]
    screen = _TerminalHandler() if sys.stdout.isatty() else _StreamHandler(sys.stdout)
    handlers: list[logging.Handler] = [screen]
    is_diverted = False
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_dir():
            os.rename(file, find_unused_name(file))
        if is_diverted := bool(rank) and PARENT in os.environ:
            _divert(file)
        else:
            handlers.append(_FileHandler(file, delay=True))
    if keep:
        handlers.append(_Keeping())
    screen.setLevel(logging.INFO if rank == 0 or is_diverted else logging.WARNING)
    root, prefix = logging.getLogger(), f"[rank {rank}] " if rank else ""
    text = FORMAT.replace("%(message)s", prefix + "%(message)s")
    for handler in handlers:
        handler.setFormatter(logging.Formatter(text, "%H:%M:%S"))
        handler.of_launcher = True  # type: ignore[attr-defined]
        root.addHandler(handler)
    if file is not None:
        # The last handler is the file's, even if the screen is diverted to it.
        for record in records:
            handlers[-1].handle(record)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)


def _remove_handlers() -> list[logging.Handler]:
    root = logging.getLogger()
    ours = [handler for handler in root.handlers if getattr(handler, "of_launcher", False)]
    for handler in ours:
        root.removeHandler(handler)
        handler.close()
    return ours


@contextmanager
def without_launcher_logging() -> Iterator[None]:
    """Undo `setup_logging` at the end of the context, in a process that does more than one run."""
    root = logging.getLogger()
    level = root.level
    try:
        yield
    finally:
        _remove_handlers()
        root.setLevel(level)
        logging.captureWarnings(False)


def _divert(file: Path) -> None:
    """Send standard output and standard error to a file, including the output of native code."""
    sys.stdout.flush()
    sys.stderr.flush()
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for number in (1, 2):
        os.dup2(target, number)
    os.close(target)
