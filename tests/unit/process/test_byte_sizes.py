"""Amounts of bytes, and the size of a folder."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.process.byte_sizes import folder_size, parse_size, size


@pytest.mark.parametrize(("text", "expected"), [
    ("0", 0), ("1000", 1000), ("512 B", 512), ("1kB", 1000), ("1KiB", 1024), ("2TB", 2e12),
    ("1.5 TiB", 1.5 * 2**40), ("500G", 5e11), ("1Pb", 1e15), ("iB", None), ("1iB", None),
    ("-1GB", None), ("1XB", None), ("", None), ("1e3", None),
])  # fmt: skip
def test_amount_of_bytes_is_parsed_with_its_unit(text: str, expected: float | None) -> None:
    assert parse_size(text) == expected


@given(st.integers(0, 10**15))
def test_a_printed_amount_is_read_back(amount: int) -> None:
    assert parse_size(size(amount)) == pytest.approx(amount, rel=0.06, abs=1)


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
