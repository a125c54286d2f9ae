"""Exceptions as messages for the user."""

import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from hydra.errors import InstantiationException

from launcher.config.compose.session import first_line
from launcher.config.construct import target_object
from launcher.config.schema import validate
from launcher.config.schema.signature import class_source
from launcher.config.secrets import without_environment
from launcher.config.tree import join
from launcher.errors import TrainingError, causes, config_error, is_out_of_memory
from launcher.process.printable import printable
from launcher.rundir.folder import RunFolder
from launcher.rundir.imported_sources import is_library

LOG = "launcher_log"
LIBRARY_ERRORS = (ValueError, TypeError, OverflowError, RuntimeError)
"""Errors by which libraries reject arguments."""


def report(messages: Sequence[str]) -> None:
    print(printable("\n".join(messages)), file=sys.stderr, flush=True)


def explain(error: BaseException) -> list[str]:
    """Return the messages for an exception that the user can fix; empty for other exceptions."""
    rejected = config_error(error)
    if rejected is not None:
        return without_environment(rejected.messages)
    if isinstance(error, InstantiationException):
        reasons = (_explain_not_found, _is_abstract, _is_not_callable, _is_rejected)
        return [message for reason in reasons if (message := reason(error))][:1]
    return []


def _explain_not_found(error: InstantiationException) -> str | None:
    """Return a message for a `_target_` that Hydra could not import, or None if it was imported."""
    path, target = _parse_build_error(error, "Error locating target '")
    if not target:
        return None
    missing = class_source(target).missing
    if missing is not None:
        return str(validate.target_issue(path, target, missing))
    *_, cause = causes(error)
    why = f"{cause.msg}." if isinstance(cause, SyntaxError) else first_line(cause)
    return f"{join(path, '_target_')}={target!r}: cannot be imported: {_user_line(cause)}{why}"


def _is_abstract(error: InstantiationException) -> str | None:
    """Return a message for a `_target_` whose class lacks methods, or None if it has them."""
    path, target = _parse_build_error(error, "Error in call to target '")
    missing = sorted(getattr(target_object(target), "__abstractmethods__", ())) if target else []
    if not missing:
        return None
    methods = " and ".join(f"{name}()" for name in missing)
    return f"{join(path, '_target_')}={target}: the class has no {methods}; add what is missing."


def _is_not_callable(error: InstantiationException) -> str | None:
    """Return a message for a `_target_` that is a module or another object, or None."""
    start = "Expected a callable target, got "
    path, _ = _parse_build_error(error, start)
    found = str(error).partition(start)[2].partition("\n")[0]
    key = join(path, "_target_")
    if found:
        return f"{key}={found}: should name a class or function."
    return None


def _is_rejected(error: InstantiationException) -> str | None:
    """Return a message for arguments that a library's class does not take, or None."""
    path, target = _parse_build_error(error, "Error in call to target '")
    why = library_error(unwrap_cause(error))
    if target and why:
        return f"{path}: {target.rpartition('.')[2]} cannot be made: {why}"
    return None


def library_error(error: BaseException) -> str | None:
    """Return why a library rejected its arguments, or None: user code's error has a traceback."""
    # A subclass of torch's is of the machine: a device, the network.
    is_of_machine = isinstance(error, RuntimeError) and type(error) is not RuntimeError
    is_of_machine |= is_out_of_memory(f"{type(error).__name__}: {error}")
    is_rejection = isinstance(error, LIBRARY_ERRORS) and not is_of_machine
    if is_rejection and not _user_line(error):
        return first_line(error)
    return None


def _parse_build_error(error: InstantiationException, beginning: str) -> tuple[str, str]:
    """Return the path of a node that Hydra could not build, and its `_target_`; "" if unknown."""
    message = str(error)
    target = message.partition(beginning)[2].partition("'")[0]
    return message.rpartition("full_key: ")[2].strip() if "full_key: " in message else "", target


def _user_line(error: BaseException) -> str:
    """Return the line of the user's own code at which an error was raised, with a colon, or ""."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: "
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if not is_library(frame.filename)]
    if user_frames:
        return f"{user_frames[-1].filename}, line {user_frames[-1].lineno}: "
    return ""


def unwrap_cause(error: BaseException) -> BaseException:
    """The error that a part raised while Hydra built it."""
    while isinstance(error, InstantiationException) and error.__cause__ is not None:
        error = error.__cause__
    return error


def user_traceback(error: BaseException) -> str:
    """Format a traceback with the frames of the user's code, or all frames without any.

    If the whole traceback is in a log, only the log is named in place of other frames.
    """
    error = unwrap_cause(error)
    stack = traceback.TracebackException.from_exception(error)
    whole = "".join(stack.format())
    any_own = any(hasattr(cause, "of_other_process") for cause in causes(error))
    chain: traceback.TracebackException | None = stack
    while chain is not None:
        user_frames = [frame for frame in chain.stack if not is_library(frame.filename)]
        any_own = any_own or bool(user_frames)
        chain.stack = traceback.StackSummary.from_list(user_frames)
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
    log = error.__dict__.get(LOG)
    if not any_own and not log:
        return whole
    place = f"The whole traceback is in {log}.\n" if log else ""
    # The error of another process is only passed on here.
    elsewhere: str | None = getattr(error.__cause__, "of_other_process", None)
    if elsewhere is not None and not stack.stack:
        return f"{place}{elsewhere}"
    if any_own:
        return "".join([place, *stack.format()])
    return f"{''.join(stack.format_exception_only())}No line of your own code raised it. {place}"


def log_traceback(error: BaseException, folder: RunFolder, rank: int = 0) -> None:
    """Append the whole traceback of a crash to a run's log; `user_traceback` then names the log."""
    log = folder.log_path(rank)
    if config_error(error) is None and not isinstance(error, TrainingError) and log.parent.is_dir():
        # The folder may belong to another user.
        with suppress(OSError), log.open("a") as file:
            file.write("".join(traceback.format_exception(error)))
            unwrap_cause(error).__dict__[LOG] = log
