"""A file is replaced as a whole, durably, or not at all."""

import os
import socket
import tracemalloc
from pathlib import Path

import pytest

from launcher.process.files import MAX_BYTES, read_file, replace_file, replacing


@pytest.fixture
def calls(monkeypatch):
    """Calls that sync and rename, in order."""
    made: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(fd: int) -> None:
        made.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        fsync(fd)

    def note_replace(source: Path, target: Path) -> None:
        made.append(f"rename {Path(source).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    return made


def test_file_rename_folder(tmp_path, calls):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["a.json"]
    assert calls == ["fsync .a.json.tmp", "rename .a.json.tmp", f"fsync {tmp_path.name}"]


def test_failed_replacement_leaves_the_old_file(tmp_path, calls):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="full"), replacing(path) as temporary:
        temporary.write_bytes(b"n")
        raise OSError(28, "full")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a.json"] and calls == []


KINDS = {
    "pipe": (os.mkfifo, "it is a pipe or a device"),
    "folder": (os.mkdir, "it is a folder"),
    "link to a device": (lambda path: os.symlink("/dev/zero", path), "it is a link"),
    "link to a file": (lambda path: os.symlink(__file__, path), "it is a link"),
    "link to itself": (lambda path: os.symlink(path, path), "it is a link"),
    "socket": (lambda path: socket.socket(socket.AF_UNIX).bind(str(path)), "No such device"),
    "large": (lambda path: path.open("wb").truncate(MAX_BYTES + 1), "more than 1024 MiB"),
}


@pytest.mark.parametrize(("make", "message"), KINDS.values(), ids=KINDS)
def test_only_a_regular_file_of_bounded_size_is_read(make, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("file")
    make(path)
    with pytest.raises(OSError, match=message):
        read_file(path)


def test_a_small_file_takes_little_memory(tmp_path):
    (tmp_path / "file").write_bytes(b"text")
    tracemalloc.start()
    try:
        assert read_file(tmp_path / "file") == b"text"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_device_is_never_read():
    for follow in (False, True):
        with pytest.raises(OSError, match="a pipe or a device"):
            read_file("/dev/zero", follow)
