"""Amounts of bytes, and the size of a folder."""

import os

from launcher.process.byte_sizes import folder_size


def test_folder_size_follows_the_folder_itself_alone(tmp_path):
    (tmp_path / "own" / "deep").mkdir(parents=True)
    (tmp_path / "own" / "deep" / "file").write_bytes(b"x" * 100)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_bytes(b"x" * 1000)
    os.symlink(tmp_path / "other", tmp_path / "own" / "link")
    os.symlink(tmp_path / "own", tmp_path / "alias")
    # os.walk lists a link to a folder among the folders
    assert folder_size(tmp_path / "own") == folder_size(tmp_path / "alias") == 100
    assert folder_size(tmp_path / "missing") == 0
