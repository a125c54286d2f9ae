"""Summaries of metrics.jsonl, for listings and for run.json."""

import json
import math

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.rundir import metrics_summary
from launcher.rundir.history import BARS, read_rows
from launcher.rundir.metrics_summary import curve_and_newest, newest_metrics, summary

KEYS = st.sampled_from(["step", "train/loss", "val/loss", "train/lr/0", "a"])
VALUES = st.one_of(
    st.floats(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=4),
    st.none(),
    st.booleans(),
    st.lists(st.floats(), max_size=2),
)


@pytest.fixture
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("run") / "metrics.jsonl"


@settings(max_examples=20)
@given(rows=st.lists(st.dictionaries(KEYS, VALUES, max_size=5), max_size=12))
def test_the_newest_value_of_each_metric_is_kept_whatever_was_logged(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))  # NaN and Infinity as well
    expected = {key: (row[key], row.get("step")) for row in rows for key in row if "/" in key}
    assert repr(newest_metrics(path)) == repr(
        {key: metrics_summary.LoggedValue(*value) for key, value in expected.items()}
    )
    stored = summary(path)
    assert (stored is None) == (not expected)
    if stored is not None:
        text = json.dumps(stored, allow_nan=False)
        assert orjson.loads(text)["newest"].keys() == expected.keys()


def test_the_newest_values_of_a_long_file_are_those_of_its_end(path, monkeypatch):
    assert newest_metrics(path) == {}
    path.write_text(
        '{"step": 1, "old/a": 1}\n' + "".join(f'{{"step": {n}, "a/b": {n}}}\n' for n in range(100))
    )
    monkeypatch.setattr(metrics_summary, "TAIL_BYTES", 200)
    assert newest_metrics(path) == {"a/b": (99, 99)}


@pytest.mark.parametrize("torn", ["", '{"step": 100, "a', '{"step": 1', "[3]\n", "null\n"])
@pytest.mark.parametrize("tail", [50, 200, 1 << 20])
def test_the_end_of_a_file_has_complete_lines_only(path, torn, tail):
    assert list(read_rows(path, tail)) == []
    rows = [{"step": n, "a/b": n} for n in range(100)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + torn)
    end = list(read_rows(path, tail))
    assert end == rows[len(rows) - len(end) :]
    assert len(end) == 100 if tail > 5000 else len(end) * len('{"step": 1, "a/b": 1}\n') <= tail


def test_a_summary_is_of_the_whole_file_or_none(path, monkeypatch):
    assert summary(path) is None
    path.write_text("".join(f'{{"step": {n}, "train/loss": {n}}}\n' for n in range(8)))
    small = summary(path)
    assert small == {"curve": BARS, "newest": {"train/loss": [7, 7]}}
    monkeypatch.setattr(metrics_summary, "MAX_FULL_READ", 10)
    assert summary(path)["newest"] == small["newest"], "of a long file"
    monkeypatch.setattr(metrics_summary, "MAX_TEXT", 10)
    assert summary(path) is None


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"a/b": ' + "[" * 9_000 + "]" * 9_000 + "}",
        '{"train/loss": 1' + "0" * 400 + "}",
    ],
)
def test_a_line_that_no_run_has_written_is_no_error(path, line):
    path.write_text(f'{{"step": 1, "train/loss": 2}}\n{line}\n')
    assert newest_metrics(path)["train/loss"].step in (1, None)
    orjson.loads(json.dumps(summary(path), allow_nan=False))


def test_a_metric_that_is_not_finite_is_stored_as_text(path):
    path.write_text('{"step": 1, "train/loss": NaN, "val/loss": -Infinity}\n')
    assert summary(path)["newest"] == {"train/loss": ["nan", 1], "val/loss": ["-inf", 1]}
    assert math.isnan(curve_and_newest(path)[1]["train/loss"].value)
