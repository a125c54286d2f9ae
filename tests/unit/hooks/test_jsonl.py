"""`metrics.jsonl` on a resume: each step once, and what is lost or damaged is reported and kept."""

import errno
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher import FunctionHook
from launcher.errors import ConfigError, TrainingError
from launcher.hooks.base import BaseHook
from launcher.hooks.checkpointing import CheckpointingHook
from launcher.hooks.jsonl import JsonlHook
from launcher.hooks.line_file import encode_line
from launcher.hooks.logging import LoggingHook
from launcher.hooks.media import MediaHook
from launcher.hooks.view import RunContext
from launcher.rundir.step_lines import drop_lines_after
from support.toy import GOOD, Toy


def train(workspace: Path, max_steps: int) -> None:
    Toy(
        [LoggingHook(1), CheckpointingHook(3), JsonlHook()], max_steps, workspace, batches=[GOOD]
    ).train()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of five steps."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder, 5)
    return folder


@pytest.fixture
def file(trained, tmp_path):
    """The metrics of a copy of that run, which keeps its name."""
    return Path(shutil.copytree(trained, tmp_path / "run", symlinks=True)) / "metrics.jsonl"


def lines(file: Path) -> list[int]:
    return [json.loads(line)["step"] for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    "damage", ["deleted", "emptied", "binary", "NULs", "one line", "a folder", "deep"]
)
def test_lost_lines_are_reported_and_a_damaged_file_is_kept(file, caplog, damage):
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
    train(file.parent, 8)
    assert "lines that the checkpoint of step 5 records; the others are lost" in caplog.text
    assert lines(file) == ([1, 3, 4, 5, 6, 7, 8] if damage == "one line" else [5, 6, 7, 8])
    kept = file.with_suffix(".jsonl.damaged")
    if damage == "a folder":
        assert kept.is_dir()
    elif damaged:
        assert kept.read_bytes() == damaged
    else:
        assert not kept.exists()


def test_a_value_that_is_not_a_number_is_reported_once(tmp_path, caplog):
    hook = FunctionHook(on_after_step=lambda trainer: trainer.log({"x": "red", "y": None}))
    Toy([hook, JsonlHook()], 3, tmp_path, batches=[GOOD]).train()
    (told,) = [text for text in caplog.messages if "not written" in text]
    assert told.startswith("trainer.log: x is a str")


@pytest.mark.parametrize("name", ["step", "time", "attempt", "samples", "epoch"])
def test_a_record_cannot_replace_a_key_that_every_line_has(tmp_path, name):
    hook = FunctionHook(on_after_step=lambda trainer: trainer.log({name: 99}))
    with pytest.raises(ConfigError, match=f"^trainer.log: {name} is a key .* e.g. my/{name}.$"):
        Toy([hook, JsonlHook()], 1, tmp_path).train()


def test_a_line_that_was_cut_off_is_dropped(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"step": 3, "tr')
    assert drop_lines_after(file, 9) == 2
    assert file.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("rows", [[1, 2, 3], [2, 2, 3], []])
def test_lines_in_order_are_left_alone(tmp_path, rows, caplog):
    file = tmp_path / "media.jsonl"
    file.write_text("".join(f'{{"step": {row}, "n": {n}}}\n' for n, row in enumerate(rows)))
    before = file.read_bytes()
    assert drop_lines_after(file, 3, once=False) == len(rows)
    assert file.read_bytes() == before and not caplog.records


@pytest.mark.parametrize("change", ["doubled", "each twice", "shuffled"])
def test_lines_twice_or_out_of_order_are_reported_and_put_in_order(file, caplog, change):
    content = file.read_bytes().splitlines(keepends=True)
    damaged = {
        "doubled": content * 2,
        "each twice": [line for line in content for _ in range(2)],
        "shuffled": [content[n] for n in (1, 4, 0, 2, 3)],
    }[change]
    file.write_bytes(b"".join(damaged))
    train(file.parent, 8)
    assert lines(file) == list(range(1, 9)) and file.read_bytes().startswith(b"".join(content))
    assert "lines twice or out of order: it is kept as metrics.jsonl.damaged" in caplog.text
    assert file.with_suffix(".jsonl.damaged").read_bytes() == b"".join(damaged)


@pytest.mark.parametrize("failing", [range(3, 4), range(2, 9), range(2, 999)])
def test_a_lock_that_cannot_be_read_ends_no_training(tmp_path, failing):
    """Lines wait until it can be read. If that is never, the training has failed; the next attempt
    has its lines."""
    looks = iter(range(999))

    def check_lock() -> None:
        if next(looks) in failing:
            raise OSError(errno.EIO, "Input/output error")

    trainer = Toy([LoggingHook(1), CheckpointingHook(3), JsonlHook()], 8, tmp_path, batches=[GOOD])
    trainer.context = RunContext(check_lock=check_lock)
    if 999 - 1 in failing:
        with pytest.raises(TrainingError, match=r"The checkpoint of step 8 could not be written"):
            trainer.train()
        train(tmp_path, 8)
    else:
        trainer.train()
    assert lines(tmp_path / "metrics.jsonl") == list(range(1, 9))


@pytest.mark.parametrize(
    ("name", "settings"), [("metrics.jsonl", {}), ("media.jsonl", {"pause_at": 6})]
)
def test_lines_that_are_never_written_are_a_failure_and_the_next_attempt_writes_them(
    tmp_path, name, settings
):
    def hooks() -> list[BaseHook]:
        draws = FunctionHook(on_after_step=lambda trainer: trainer.log_histograms({"x": [1.0]}))
        return [LoggingHook(1), draws, CheckpointingHook(3), JsonlHook(), MediaHook()]

    def fill_disk(trainer: Any) -> None:
        if trainer.step == 3:
            os.rename(file, file.with_suffix(".there"))
            os.symlink("/dev/full", file)

    file, full = tmp_path / name, FunctionHook(on_after_step=fill_disk)
    with pytest.raises(TrainingError, match=rf"\d lines of .*{name} could not be written"):
        Toy([*hooks(), full], 8, tmp_path, batches=[GOOD], **settings).train()
    os.replace(file.with_suffix(".there"), file)
    Toy(hooks(), 8, tmp_path, batches=[GOOD]).train()
    assert lines(file) == list(range(1, 9))


@settings(max_examples=30)
@given(st.dictionaries(st.text(st.characters()), st.floats() | st.integers() | st.booleans()))
@example({"sum": 1e308, "overflows": 1e308})
@example({"a float cannot hold it": 10**400})
@example({"half a character \ud800": 1.0})
def test_every_number_is_written_as_it_is(line):
    text = {math.inf: "inf", -math.inf: "-inf"}
    expected = {
        key: "nan" if value != value else text.get(value, value) for key, value in line.items()
    }
    read = json.loads(encode_line(line))
    assert read == expected and list(map(type, read.values())) == list(map(type, expected.values()))
