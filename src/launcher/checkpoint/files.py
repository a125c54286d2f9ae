"""Durable files: written through one function that hashes, fsyncs, and says what it wrote."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from launcher.checkpoint.chunks import ChunkWriter

CHUNK = 1 << 20
"""Bytes hashed and then written at a time: small enough to be still in the cache for the write."""


@dataclass(frozen=True)
class FileEntry:
    """A file of a checkpoint as the manifest has it."""

    name: str
    size: int
    xxh3: str
    """xxh3-128 of its bytes, hex; of a file in pieces, of their checksums in a row. It finds rot and torn writes; it is
    no defence against forgery."""
    pieces: tuple[tuple[int, str], ...] = ()
    """Bytes and checksum of each tensor, in order: who reads one can check it alone."""


def nothing() -> None:
    pass


def write_file(
    path: Path, buffers: Iterable[memoryview | bytes], advanced: Callable[[], None] = nothing, size: int = 0
) -> FileEntry:
    """Write, hash, fsync. The folder's own fsync is the caller's.

    Args:
        buffers: each is a piece with a checksum of its own.
        advanced: called after each chunk; what it raises ends the writing.
        size: about so many bytes are to come.
    Raises:
        OSError: the disk is full, read-only or broken.
    """
    pieces = []
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        with ChunkWriter(fd, size) as writer:
            for buffer in buffers:
                view, digest = memoryview(buffer).cast("B"), xxhash.xxh3_128()
                for start in range(0, len(view), CHUNK):
                    chunk = view[start : start + CHUNK]
                    digest.update(chunk)
                    writer.write(chunk)
                    advanced()
                pieces.append((len(view), digest.hexdigest()))
        os.fsync(fd)
    finally:
        os.close(fd)
    return entry_of(path.name, pieces)


def entry_of(name: str, pieces: list[tuple[int, str]]) -> FileEntry:
    """The entry of a file with these pieces; of one piece it is that of the file."""
    size = sum(length for length, _ in pieces)
    if len(pieces) == 1:
        return FileEntry(name, size, pieces[0][1])
    return FileEntry(
        name, size, xxhash.xxh3_128_hexdigest("".join(checksum for _, checksum in pieces).encode()), tuple(pieces)
    )


def write_json(path: Path, data: Any) -> FileEntry:
    return write_file(path, [json.dumps(data, indent=1, allow_nan=False).encode()])


def hash_file(path: Path, name: str | None = None, pieces: Iterable[tuple[int, str]] = ()) -> FileEntry:
    """What `write_file` said of these bytes, if they are unchanged.

    Args:
        pieces: of the file as it should be; without them it is one.
    """
    lengths = [length for length, _ in pieces] or [os.stat(path).st_size]
    found = []
    view = memoryview(bytearray(CHUNK))
    with open(path, "rb", buffering=0) as file:
        for length in lengths:
            digest, left = xxhash.xxh3_128(), length
            while left and (count := file.readinto(view[: min(left, CHUNK)])):
                digest.update(view[:count])
                left -= count
            found.append((length - left, digest.hexdigest()))
    return entry_of(name or path.name, found)
