"""Exceptions as sentences for the user."""

import sys
from argparse import Namespace
from collections.abc import Sequence

from hydra.errors import InstantiationException

from launcher.config import schema
from launcher.config.diagnose import diagnose
from launcher.config.session import COMPOSITION_ERRORS, first_line
from launcher.config.source import NotThere, Opaque, locate
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
    """A `_target_` that Hydra could not import, said in one sentence; None if it was found, and failed
    itself."""
    message = str(error)
    if "Error locating target '" not in message:
        return None
    target = message.partition("Error locating target '")[2].partition("'")[0]
    key = message.rpartition("full_key: ")[2].strip() if "full_key: " in message else ""
    name = f"{key}._target_={target!r}" if key else f"_target_={target!r}"
    try:
        locate(target)
    except NotThere as missing:
        return schema.not_there(name, missing)
    except Opaque:
        pass
    cause = error.__cause__
    while cause is not None and cause.__cause__ is not None:
        cause = cause.__cause__
    return f"{name}: cannot be imported: {first_line(cause or error)}"
