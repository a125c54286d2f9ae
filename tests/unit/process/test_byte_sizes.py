"""Amounts of bytes, and the size of a folder."""

import os
from pathlib import Path

import pytest

from launcher.process.byte_sizes import folder_size, size


@pytest.mark.parametrize(("amount", "expected"), [
    (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_500_000, "1.5 MB"), (2e12, "2.0 TB"),
])  # fmt: skip
def test_an_amount_has_the_unit_that_fits(amount: float, expected: str) -> None:
    assert size(amount) == expected


def test_folder_size_follows_the_folder_itself_alone(tmp_path: Path) -> None:
    (tmp_path / "own" / "deep").mkdir(parents=True)
    (tmp_path / "own" / "deep" / "file").write_bytes(b"x" * 100)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_bytes(b"x" * 1000)
    os.symlink(tmp_path / "other", tmp_path / "own" / "link")
    os.symlink(tmp_path / "own", tmp_path / "alias")
    # os.walk lists a link to a folder among the folders
    assert folder_size(tmp_path / "own") == folder_size(tmp_path / "alias") == 100
    assert folder_size(tmp_path / "missing") == 0
