"""A file is replaced as a whole, durably, or not at all."""

import os
from pathlib import Path

import pytest

from launcher.process.files import replace_file, replacing


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
