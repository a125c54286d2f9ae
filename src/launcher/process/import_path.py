"""The current folder, and whether Python imports from it.

The commands begin with this module, so it imports nothing that a file could hide.
"""

import os
import sys
import time

from launcher.errors import ConfigError

FIRST_LINE = time.time()
"""When a command began with this module, in seconds since the epoch."""
RECORD = "run.json"


def current_folder() -> str:
    """Return the current folder.

    Raises:
        ConfigError: it was removed.
    """
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ConfigError(
            "The current folder does not exist anymore; go to another one with cd."
        ) from None


def add_current_folder(place: int = 0) -> None:
    """Let Python import from the current folder, as `python -m` does, unless it is of a run."""
    folder = current_folder()
    if folder not in sys.path and not is_of_a_run(folder):
        sys.path.insert(place, folder)


def leave_out_run_folder() -> None:
    """Import nothing from the current folder if it is of a run, which somebody else may write.

    The processes that this one starts do not, either.
    """
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        # The command reports it.
        return
    if is_of_a_run(folder):
        sys.path[:] = [path for path in sys.path if path not in ("", folder)]
        os.environ["PYTHONSAFEPATH"] = "1"


def is_of_a_run(folder: str) -> bool:
    """Return whether a folder, or one above it, has the record of a run."""
    while not os.path.lexists(os.path.join(folder, RECORD)):
        above = os.path.dirname(folder)
        if above == folder:
            return False
        folder = above
    return True
