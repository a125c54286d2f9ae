"""Durable files: written through one function that hashes, fsyncs, and says what it wrote."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

CHUNK = 8 << 20
"""Bytes hashed and then written at a time: small enough to be still in the cache for the write."""


@dataclass(frozen=True)
class FileEntry:
    """A file of a checkpoint as the manifest has it."""

    name: str
    size: int
    xxh3: str
    """xxh3-128 of its bytes, hex. It finds rot and torn writes; it is no defence against forgery."""


def nothing() -> None:
    pass


def write_file(
    path: Path, buffers: Iterable[memoryview | bytes], advanced: Callable[[], None] = nothing
) -> FileEntry:
    """Write, hash, fsync. The folder's own fsync is the caller's.

    Args:
        advanced: called after each chunk; what it raises ends the writing.
    Raises:
        OSError: the disk is full, read-only or broken.
    """
    digest, size = xxhash.xxh3_128(), 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            for start in range(0, len(view), CHUNK):
                chunk = view[start : start + CHUNK]
                digest.update(chunk)
                _write_all(fd, chunk)
                size += len(chunk)
                advanced()
        os.fsync(fd)
    finally:
        os.close(fd)
    return FileEntry(path.name, size, digest.hexdigest())


def _write_all(fd: int, view: memoryview) -> None:
    while view:
        view = view[os.write(fd, view) :]


def write_json(path: Path, data: Any) -> FileEntry:
    return write_file(path, [json.dumps(data, indent=1, allow_nan=False).encode()])


def hash_file(path: Path, name: str | None = None) -> FileEntry:
    """What `write_file` said of these bytes, if they are unchanged."""
    digest, size = xxhash.xxh3_128(), 0
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(view):
            digest.update(view[:count])
            size += count
    return FileEntry(name or path.name, size, digest.hexdigest())


def fsync_folder(path: Path) -> None:
    """Make the names in a folder durable: without it a rename may not have happened after a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
