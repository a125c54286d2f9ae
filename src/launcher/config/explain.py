"""Exceptions as sentences for the user."""

import sys
from argparse import Namespace
from collections.abc import Sequence

from hydra.errors import InstantiationException

from launcher.config import schema
from launcher.config.diagnose import diagnose
from launcher.config.session import COMPOSITION_ERRORS, first_line
from launcher.config.source import NotFound, Unresolvable, locate
from launcher.config.tree import join
from launcher.errors import config_error


def report(sentences: Sequence[str]) -> None:
    print("\n".join(sentences), file=sys.stderr, flush=True)


def explain(error: BaseException, arguments: Namespace | None = None) -> list[str]:
    """The sentences for an exception that the user can fix; with `arguments`, a command line that failed before its
    task started, also for Hydra's own errors."""
    if (own := config_error(error)) is not None:
        return own.sentences
    if isinstance(error, InstantiationException) and (sentence := _not_located(error)):
        return [sentence]
    if arguments is None or not isinstance(error, COMPOSITION_ERRORS):
        return []
    if arguments.shell_completion:
        return [f"{first_line(error).rstrip('.')}; e.g. -sc install=bash."]
    found = diagnose(arguments.overrides, arguments.config_dir, arguments.config_name or "config", arguments.multirun)
    return found or [first_line(error)]


def _not_located(error: InstantiationException) -> str | None:
    """A sentence for a `_target_` that Hydra could not import; None if it was imported."""
    message = str(error)
    if "Error locating target '" not in message:
        return None
    target = message.partition("Error locating target '")[2].partition("'")[0]
    path = message.rpartition("full_key: ")[2].strip() if "full_key: " in message else ""
    try:
        locate(target)
    except NotFound as missing:
        return str(schema.target_not_found(path, target, missing))
    except Unresolvable:
        pass
    return f"{join(path, '_target_')}={target!r}: cannot be imported: {first_line(root_cause(error))}"


def root_cause(error: BaseException) -> BaseException:
    """The innermost exception that an error was raised from."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
