"""Durable files: one function writes, hashes, fsyncs, and returns the manifest entry."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from launcher.checkpoint.chunks import ChunkWriter
from launcher.process.files import open_file

CHUNK = 1 << 20
"""Bytes that are hashed and then written at a time, few enough to be in the cache."""


@dataclass(frozen=True)
class FileEntry:
    """A file of a checkpoint, as the manifest records it."""

    name: str
    size: int
    xxh3: str
    """xxh3-128 checksum of its bytes, in hex; of a file in pieces, the checksum of their
    concatenated checksums. It detects rot and torn writes, not forgery."""
    pieces: tuple[tuple[int, str], ...] = ()
    """Length and checksum of the header and of each tensor, in order, so that each of them can be
    verified without the others."""


def nothing() -> None:
    pass


def write_file(
    path: Path,
    buffers: Iterable[memoryview | bytes],
    advanced: Callable[[], None] = nothing,
    size: int = 0,
) -> FileEntry:
    """Write a file, hash it and fsync it, but not the folder.

    Args:
        path: the new file.
        buffers: each is a piece with its own checksum.
        advanced: called after each chunk. It may raise to abort the write.
        size: the approximate number of bytes.
    """
    pieces = []
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
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
    """Return the entry of a file with these pieces. A single piece is the whole file."""
    size = sum(length for length, _ in pieces)
    if len(pieces) == 1:
        return FileEntry(name, size, pieces[0][1])
    return FileEntry(
        name,
        size,
        xxhash.xxh3_128_hexdigest("".join(checksum for _, checksum in pieces).encode()),
        tuple(pieces),
    )


def write_json(path: Path, data: object) -> FileEntry:
    return write_file(path, [json.dumps(data, indent=1, allow_nan=False).encode()])


def hash_file(
    path: Path, name: str | None = None, pieces: Iterable[tuple[int, str]] = ()
) -> FileEntry:
    """Return the entry that `write_file` returned, if the bytes are unchanged.

    `name` is the last part of the path by default. Without the recorded pieces, the file is one
    piece.
    """
    lengths = [length for length, _ in pieces] or [os.stat(path).st_size]
    pieces_now = []
    view = memoryview(bytearray(CHUNK))
    with open_file(path, follow=True) as file:
        for length in lengths:
            digest = xxhash.xxh3_128()
            left = length
            while left and (count := file.readinto(view[: min(left, CHUNK)])):
                digest.update(view[:count])
                left -= count
            pieces_now.append((length - left, digest.hexdigest()))
    return entry_of(name or path.name, pieces_now)
