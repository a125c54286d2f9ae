"""The users of a machine: whose a file is, and what a user who may not write it can ask for."""

import errno
import os
import pwd
from pathlib import Path

DENIED = (errno.EACCES, errno.EPERM)


def this_user() -> str:
    """Return the name of the user whose rights this process has."""
    return _name(os.geteuid())


def other_owner(path: str | os.PathLike[str]) -> str | None:
    """Return the owner of a file, or None if it is this user's or cannot be found."""
    try:
        owner = os.stat(path).st_uid
    except OSError:
        return None
    return None if owner == os.geteuid() else _name(owner)


def explain_denial(error: OSError, path: Path) -> tuple[str, str]:
    """Explain an error of writing, or of reading, a path.

    Returns:
        The cause, and what its owner can do about it: "" unless a file or folder of another user
        is the cause.
    """
    cause = str(error.strerror or error)
    if error.errno not in DENIED:
        return cause, ""
    path = Path(os.fsdecode(error.filename) if error.filename else path)
    place = next((each for each in (path, *path.parents) if each.exists()), path)
    # A file is replaced by a new one, which only its folder can reject.
    if place.is_file() and not os.access(place.parent, os.W_OK):
        place = place.parent
    owner = other_owner(place)
    return (cause if owner is None else f"{cause}: {place} belongs to {owner}"), ask_owner(place)


def ask_owner(place: Path) -> str:
    """Return what this user can ask the owner of a folder for, or "" if it is this user's."""
    owner = other_owner(place)
    if owner is None:
        return ""
    return f", or ask {owner} for `chmod -R g+rwX {place}`, and `umask 002` for later runs"


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    # The machine may not know the user, for instance in a container.
    except KeyError:
        return str(user)
