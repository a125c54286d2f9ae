"""Compare training data, by the state of their files or by their fingerprint."""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from glob import glob, has_magic
from itertools import islice

from launcher.errors import ConfigError
from launcher.process.files import expand

MAX_FILES = 1000
"""Maximum number of files of a folder that are looked at, since it may have millions."""


COUNT = re.compile(r"(?:^|: )\d+ samples(?:;|$)")
"""The fingerprint of a dataset that has none of its own (see `launcher.data.iterable`)."""


def state_of_files(node: object) -> str | None:
    """Digest name, size and time of the files that the values of a node name, or None if none do.

    No file is read. A folder stands for the files below it.
    """
    digest = hashlib.sha256()
    is_empty = True
    for path in find_paths(node):
        with suppress(OSError, ValueError):
            status = os.stat(path)
            digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
            is_empty = False
    return None if is_empty else digest.hexdigest()[:16]


def find_paths(node: object) -> Iterator[str]:
    """Yield the files that the values of a node may name, whether they exist or not."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from () if str(key).startswith("_") else find_paths(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from find_paths(value)
    elif isinstance(node, str) and "://" not in node:
        path = str(expand(node))
        for name in sorted(glob(path, recursive=True)) if has_magic(path) else [path]:
            yield from sorted(islice(_below(name), MAX_FILES)) if os.path.isdir(name) else [name]


def _below(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            yield from _below(entry.path) if entry.is_dir(follow_symlinks=False) else [entry.path]


def describe_changed_files(before: str | None, now: str | None, mark: object) -> list[str]:
    """Return a message if files have changed whose content nobody compares.

    Args:
        before: `state_of_files` when the run was trained.
        now: the same now.
        mark: the fingerprint of the training data, which is compared elsewhere.
    """
    is_of_content = isinstance(mark, str) and not COUNT.search(mark)
    if is_of_content or before is None or before == now:
        return []
    return [
        "data: a file that its settings name has another size, time or place than before; the"
        " dataset has no fingerprint of its own, so nothing compares its content."
    ]


def check_fingerprint(was: object, now: str | None) -> None:
    """Reject other training data than a checkpoint's."""
    if was != now and was is not None and now is not None:
        raise ConfigError(
            f"data: the training data were '{was}' when the checkpoint was written and are '{now}'"
            " now; restore them, or start another run (run.tag=...), perhaps from this"
            " checkpoint's weights (run.init_from=...)."
        )
