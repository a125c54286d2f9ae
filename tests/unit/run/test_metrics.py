"""A metrics.jsonl is read by its kinds of lines, and gives what its lines give."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.run import metrics
from launcher.run.history import BARS, parsed, values_of
from launcher.run.metrics import (
    kinds_of,
    newest_in,
    newest_lines,
    newest_metrics,
    newest_of,
    summary,
    values_and_newest,
)

LOSS = "train/loss"
TRAIN = '{"step": 1, "time": 1.5, "train/loss": 2.25, "train/lr/0": 1e-05}\n'


def check(data):
    rows = list(parsed(data.splitlines()))
    values, lines = values_and_newest(data, LOSS)
    assert json.dumps(values) == json.dumps(values_of(rows, LOSS))  # nan is nan
    for newest in (newest_in(lines), newest_in(newest_lines(data))):
        assert {key: repr(value) for key, value in newest.items()} == {k: repr(v) for k, v in newest_of(rows).items()}


@pytest.mark.parametrize(("text", "kinds"), [
    (TRAIN * 3, 1),
    (TRAIN + TRAIN.replace("2.25", "-1e-3") + TRAIN.replace("}", ', "val/loss": 3}') + TRAIN, 3),
    ('{"step": 0, "val/loss": 3}\n' + TRAIN, 2),
    (TRAIN.replace("2.25", '"nan"') + TRAIN.replace("2.25", "null") + TRAIN.replace("2.25", "true"), 3),
    (TRAIN.replace("2.25", "NaN") + TRAIN.replace("2.25", "-Infinity"), 2),
    (TRAIN.replace("2.25", '"3"'), 1),
    (TRAIN.replace(LOSS, "train/loss/1"), 1),
    ("", None),
    (TRAIN + TRAIN.replace("lr/0", "lr/1"), None),
    (TRAIN + TRAIN.replace("lr/0", "lr.0").replace("lr.0", "lr0/"), None),
    (TRAIN.rstrip(), None),
    (TRAIN + TRAIN[:30], None),
    (TRAIN + TRAIN[:30] + "\n", None),
    (TRAIN + "\n" + TRAIN, None),
    (TRAIN + "[1]\n", None),
    (TRAIN + '{"step": 2, "a/b": {"train/loss": 3}}\n', None),
    (TRAIN + '{"step": 2, "a/b": "\\"train/loss\\": 3"}\n', None),
    (TRAIN + '{"step":2,"train/loss":3,"train/lr/0":4}\n', 2),
    (TRAIN + '{"step": 2, "train/loss": 3, "train/lr/0" : 4}\n', None),
    (TRAIN + '{"step":2,"train/loss":3}\n', 2),
    (TRAIN + TRAIN.replace("2.25", "2.2.5"), None),
    (TRAIN + TRAIN.replace("2.25", "2.2.5") + TRAIN, 1),
])  # fmt: skip
def test_lines_of_few_kinds(text, kinds):
    found = kinds_of(text.encode())
    assert (None if found is None else len(found)) == kinds
    check(text.encode())


KEYS = st.sampled_from(["step", LOSS, "val/loss", "train/lr/0", "train/lr/1", "a-b/c", "ab/c"])
VALUES = st.one_of(st.floats(), st.integers(-100, 100), st.text('a1\\" :,', max_size=4), st.none(), st.booleans())


@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=5), max_size=12))
def test_any_lines(rows):
    rows = [{k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in rows]
    check("".join(json.dumps(row) + "\n" for row in rows).encode())


def test_lines_of_many_kinds():
    text = "".join(f'{{"step": 1, "{"a" * n}/b": 2}}\n' for n in range(metrics.MOST_KINDS + 1))
    assert kinds_of(text.encode()) is None
    check(text.encode())


def test_the_newest_values_of_a_long_file_are_those_of_its_end(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    assert newest_metrics(path) == {}
    path.write_text('{"step": 1, "old/a": 1}\n' + "".join(f'{{"step": {n}, "a/b": {n}}}\n' for n in range(100)))
    monkeypatch.setattr(metrics.last_bytes, "__defaults__", (200,))
    assert newest_metrics(path) == {"a/b": (99, 99)}


def test_a_summary_is_of_the_whole_file_or_none(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    assert summary(path) is None
    path.write_text("".join(f'{{"step": {n}, "train/loss": {n}}}\n' for n in range(8)))
    small = summary(path)
    assert (small["size"], small["curve"], small["newest"]) == (
        path.stat().st_size,
        BARS,
        '{"step": 7, "train/loss": 7}',
    )
    monkeypatch.setattr(metrics, "SMALL", 10)
    assert summary(path)["newest"] == small["newest"], "of a long file"
    monkeypatch.setattr(metrics, "MOST_TEXT", 10)
    assert summary(path) is None


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"a/b": ' + "[" * 9_000 + "]" * 9_000 + "}", '{"train/loss": 1' + "0" * 400 + "}"]
)
def test_a_line_that_no_run_has_written_is_no_error(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1, "train/loss": 2}}\n{line}\n')
    assert summary(path)["size"] == path.stat().st_size
    assert newest_metrics(path)["train/loss"].step in (1, None)
