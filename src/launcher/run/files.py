"""Files: paths with `~`, and durable files, replaced atomically and fsynced."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path


def expanded(path: str | Path) -> Path:
    """A path with `~` replaced. It stays as it is if there is no such user, where `Path.expanduser` raises."""
    return Path(os.path.expanduser(path))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a temporary file that replaces `path` at the end: readers see the old file or the new one.

    If anything fails, the old file stays and the temporary one is removed. The temporary file has a fixed name, since
    each file has one writer at a time: a killed writer leaves one behind at most.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        fsync_file(temporary)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    with suppress(OSError):  # some network file systems refuse to sync a folder, and sync renames by themselves
        fsync_folder(path.parent)


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` in place of the file at `path` (see `replacing`)."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def unused(path: Path) -> Path:
    """A name next to `path` for a damaged file."""
    names = (path.with_name(f"{path.name}.damaged" + (f".{n}" if n > 1 else "")) for n in count(1))
    return next(name for name in names if not os.path.lexists(name))


def fsync_folder(path: Path) -> None:
    """Make the names in a folder durable: without it, a rename may be lost in a power cut."""
    fsync_file(path, os.O_DIRECTORY)


def fsync_file(path: Path, flags: int = 0) -> None:
    """Make durable a file that was written elsewhere."""
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
