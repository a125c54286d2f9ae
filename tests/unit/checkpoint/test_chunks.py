"""Large files: the bytes arrive, whatever the file system says of O_DIRECT, and errors come
back."""

import errno
import fcntl
import os
from typing import Any

import pytest
import xxhash

from launcher.checkpoint import chunks
from launcher.checkpoint.durable_files import hash_file, write_file

SIZES = (3, 400_001, 1, 199_999)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK", 1 << 16)
    monkeypatch.setattr(chunks, "READ_BYTES", 1 << 17)
    monkeypatch.setattr(chunks, "MIN_DIRECT_BYTES", 1 << 18)


def pieces() -> list[bytes]:
    return [os.urandom(1000) * (size // 1000) + os.urandom(size % 1000) for size in SIZES]


@pytest.mark.parametrize(
    "direct", ["wanted", "rejected by open", "rejected by write", "short writes"]
)
def test_bytes_arrive(tmp_path, monkeypatch, direct):
    real_write, real_fcntl = os.pwrite, fcntl.fcntl

    def write(fd: int, view: Any, start: int) -> int:
        is_direct = bool(real_fcntl(fd, fcntl.F_GETFL) & chunks.DIRECT)
        if is_direct and (
            direct == "rejected by write" or (direct == "short writes" and len(view) % 4096)
        ):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_write(
            fd, view[: len(view) // 2 + 1] if direct == "short writes" else view, start
        )

    def control(fd: int, command: int, flags: int = 0) -> int:
        if flags & chunks.DIRECT and direct == "rejected by open":
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_fcntl(fd, command, flags)

    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(fcntl, "fcntl", control)
    given = pieces()
    entry = write_file(tmp_path / "x", given, size=sum(SIZES))
    assert (tmp_path / "x").read_bytes() == b"".join(given)
    assert [length for length, _ in entry.pieces] == list(SIZES)
    assert hash_file(tmp_path / "x", pieces=entry.pieces) == entry
    assert write_file(tmp_path / "y", given).pieces == entry.pieces, "the ordinary way"


@pytest.mark.parametrize("at", [1, 4])
def test_errors_come_back(tmp_path, monkeypatch, at):
    real, count = os.pwrite, 0

    def write(fd: int, view: Any, start: int) -> int:
        nonlocal count
        count += 1
        if count == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, view, start)

    monkeypatch.setattr(os, "pwrite", write)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "x", pieces(), size=sum(SIZES))


@pytest.mark.parametrize("size", [400 << 10, sum(SIZES) + 5000])
def test_a_size_that_is_only_about_right(tmp_path, size):
    data = pieces()
    write_file(tmp_path / "x", data, size=size)
    assert (tmp_path / "x").read_bytes() == b"".join(data)


@pytest.mark.parametrize("supported", [True, False])
def test_space_is_reserved_where_the_file_system_can(tmp_path, monkeypatch, supported):
    if not supported:
        monkeypatch.setattr(chunks.ctypes, "CDLL", lambda *_, **__: object())
    with open(tmp_path / "x", "wb") as file:
        chunks.reserve(file.fileno(), 1 << 20)
    assert os.stat(tmp_path / "x").st_size == (supported << 20)


@pytest.mark.parametrize("most", [None, 4096])
def test_parts_are_read(tmp_path, monkeypatch, most):
    """Wherever they begin and end, also at the file's end, and never more than there is.

    Args:
        most: bytes that a read returns.
    """
    data = os.urandom(1 << 14) * 13 + b"end"
    file = tmp_path / "x"
    file.write_bytes(data)
    real_read = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda fd, views, start: real_read(fd, [views[0][:most]], start)
    )
    size = len(data)
    for start, stop in ((0, size), (4097, 150_000), (190_001, size), (5, 900), (size - 2, size)):
        content, digest = bytearray(stop - start), xxhash.xxh3_128()
        chunks.read_bytes(file, start, memoryview(content), digest)
        assert content == data[start:stop]
        assert digest.digest() == xxhash.xxh3_128_digest(data[start:stop])
    with pytest.raises(ValueError, match="ends too early"):
        chunks.read_bytes(file, 100_000, memoryview(bytearray(size)))
