"""Files: paths with `~`, and durable files, replaced atomically and fsynced."""

import errno
import io
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
PAUSES = (0.05, 0.2, 0.5)
"""Seconds between two attempts."""
PERMANENT = (errno.EEXIST, errno.EACCES, errno.EPERM, errno.EFBIG)
"""Errors that another attempt would meet again, in addition to `is_absent`."""
MAX_BYTES = 1 << 30
"""Maximum size of a file that is read as a whole."""


def expand(path: str | Path) -> Path:
    """Return a path with `~` replaced, unless the user is unknown, where `expanduser` raises."""
    return Path(os.path.expanduser(path))


def open_file(path: str | os.PathLike[str], follow: bool = False) -> io.BufferedReader:
    """Open a file of a run folder, which somebody else may have written.

    A pipe or a device in its place would block its reader forever, or have no end.

    Args:
        path: the file.
        follow: whether it may be a link. Default False: a link may lead to any file of the reader.
    Raises:
        OSError: it is not a regular file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", os.fspath(path)) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, "it is a folder", os.fspath(path))
    raise OSError(errno.EINVAL, "it is a pipe or a device", os.fspath(path))


def read_file(path: str | os.PathLike[str], follow: bool = False) -> bytes:
    """Read all of a file, see `open_file`, of at most `MAX_BYTES`."""
    with open_file(path, follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {MAX_BYTES >> 20} MiB", os.fspath(path))
        # `read(n)` allocates n bytes at once, so the bound is not passed to it.
        return file.read(size)


def remove_empty(*folders: Path) -> None:
    """Remove the folders that are empty, an inner one before the outer ones."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces `path` at the end, or is removed on errors.

    Its name is fixed, since each file has one writer at a time, so a killed writer leaves at most
    one behind.
    """
    temporary = path.parent / f".{path.name}.tmp"
    if temporary.is_symlink():
        # A link here is not ours, and writing would follow it.
        temporary.unlink()
    try:
        yield temporary
        fsync_file(temporary)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    # Network file systems may not let a folder be synced, and sync renames by themselves.
    with suppress(OSError):
        fsync_folder(path.parent)


def replace_file(path: Path, data: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure of matplotlib in place of the file at `path`, in the format of its suffix."""
    data = io.BytesIO()
    figure.savefig(data, format=path.suffix[1:].lower(), dpi=150)
    replace_file(path, data.getvalue())


def patiently(act: Callable[[], T]) -> T:
    """Call `act()`, again after an error of a network file system (EIO, ESTALE), which may pass."""
    for pause in PAUSES:
        try:
            return act()
        except OSError as error:
            if error.errno in PERMANENT or is_absent(error):
                raise
            time.sleep(pause)
    return act()


def unless_absent(read: Callable[[], T]) -> T | None:
    """Call `read` with retries, see `patiently`; return None if the file does not exist."""
    try:
        return patiently(read)
    except OSError as error:
        if is_absent(error):
            return None
        raise


def is_absent(error: OSError) -> bool:
    """Return whether a path has no file, perhaps a folder, a link or a pipe in its place."""
    in_its_place = (errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)
    return error.errno in (errno.ENOENT, errno.ENOTDIR, *in_its_place)


def parse_json(data: bytes) -> Any:
    """Parse JSON, or raise a ValueError, also if it is nested too deeply."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def find_unused_name(path: Path) -> Path:
    """Return an unused name next to `path` for a damaged file."""
    return first_unused(path, lambda number: f"{path.name}.damaged{number}")


def name_abandoned(path: Path) -> Path:
    """Return an unused `abandoned-<name>` next to `path`, for what a rollback sets aside."""
    return first_unused(path, lambda number: f"abandoned-{path.stem}{number}{path.suffix}")


def first_unused(path: Path, name: Callable[[str], str]) -> Path:
    """Return the first unused of the names for "", ".2", ".3" and so on, next to `path`."""
    numbered = map(name, chain([""], (f".{number}" for number in count(2))))
    return next(place for place in map(path.with_name, numbered) if not os.path.lexists(place))


def fsync_folder(path: Path) -> None:
    """Make the names in a folder durable. Without it, a rename may be lost in a power failure."""
    fsync_file(path, os.O_DIRECTORY)


def fsync_file(path: Path, flags: int = 0) -> None:
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
