"""`metrics.jsonl` on a resume: each step once, and what is lost or damaged is reported and kept."""

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from launcher.hooks.base import BaseHook
from launcher.hooks.checkpointing import CheckpointingHook
from launcher.hooks.jsonl import JsonlHook, append, drop_lines_after, encoded
from launcher.hooks.logging import LoggingHook
from support.toy import GOOD, Toy, Values


def train(workspace: Path, max_steps: int) -> None:
    Toy([LoggingHook(1), CheckpointingHook(3), JsonlHook()], max_steps, workspace, batches=[GOOD]).train()


def lines(file: Path) -> list[int]:
    return [json.loads(line)["step"] for line in file.read_text().splitlines()]


def test_a_resume_reports_nothing_where_all_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path, 5)
    train(tmp_path, 8)
    assert lines(tmp_path / "metrics.jsonl") == list(range(1, 9))
    assert "lost" not in caplog.text and "kept as" not in caplog.text


@pytest.mark.parametrize(
    ("hooks", "warns"),
    [([], True), ([Values({2: {"a": 1.0}})], False), ([LoggingHook(1)], False), ([LoggingHook(9)], False)],
)
def test_a_run_in_which_nothing_was_logged_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, hooks: list[BaseHook], warns: bool
) -> None:
    Toy([*hooks, JsonlHook()], 3, tmp_path, batches=[GOOD]).train()
    assert ("nothing was logged. Add LoggingHook()." in caplog.text) == warns
    assert warns is not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize("damage", ["deleted", "emptied", "binary", "NULs", "one line", "a folder", "deep"])
def test_lost_lines_are_reported_and_a_damaged_file_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    train(tmp_path, 5)
    file = tmp_path / "metrics.jsonl"
    content = file.read_bytes()
    first, *others = content.splitlines(keepends=True)
    damaged = {
        "emptied": b"",
        "binary": bytes(range(256)) * 9,
        "NULs": bytes(len(content)),
        "one line": b"".join([first, b"garbage\n", *others[1:]]),
        "deep": b"[" * 100_000 + b"\n",
    }.get(damage, b"")
    file.unlink()
    if damage == "a folder":
        file.mkdir()
    elif damage != "deleted":
        file.write_bytes(damaged)
    train(tmp_path, 8)
    assert "lines that the checkpoint of step 5 knows of; the others are lost" in caplog.text
    assert lines(file) == ([1, 3, 4, 5, 6, 7, 8] if damage == "one line" else [5, 6, 7, 8])
    kept = tmp_path / "metrics.jsonl.damaged"
    if damage == "a folder":
        assert kept.is_dir()
    elif damaged:
        assert kept.read_bytes() == damaged
    else:
        assert not kept.exists()


def test_a_line_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"step": 3, "tr')
    assert drop_lines_after(file, 9) == 2
    assert file.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_group_that_the_umask_admits_may_append(tmp_path: Path):
    before = os.umask(0o002)
    try:
        append(tmp_path / "metrics.jsonl", b"{}\n")
    finally:
        os.umask(before)
    assert (tmp_path / "metrics.jsonl").stat().st_mode & 0o777 == 0o664


@given(st.dictionaries(st.text(st.characters()), st.floats() | st.integers() | st.booleans()))
@example({"sum": 1e308, "overflows": 1e308})
@example({"a float cannot hold it": 10**400})
@example({"half a character \ud800": 1.0})
def test_every_number_is_written_as_it_is(line: dict[str, float]) -> None:
    text = {math.inf: "inf", -math.inf: "-inf"}
    expected = {key: "nan" if value != value else text.get(value, value) for key, value in line.items()}
    read = json.loads(encoded(line))
    assert read == expected and list(map(type, read.values())) == list(map(type, expected.values()))
