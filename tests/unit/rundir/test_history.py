"""The course of a run, and its small pictures."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.rundir.history import BARS, Curve, History, sample_values, sparkline

ROWS = [
    {"step": 0, "time": 102.0, "attempt": 1, "samples": 0, "val/loss": 3.0},
    {"step": 10, "time": 110.0, "attempt": 1, "samples": 80, "train/loss": "nan"},
    {"step": 20, "time": 1005.0, "attempt": 2, "samples": 160, "train/loss": 2.0, "val/loss": 2.5},
    {"step": 30, "time": 1004.0, "attempt": 2, "samples": 240, "train/loss": 1.0},
]


def test_time_between_attempts_does_not_count():
    history = History(ROWS, {1: 100.0, 2: 1000.0})
    # A clock that is set back does not count either.
    assert history.curve("train/loss", "time").x == [10.0, 15.0, 15.0]
    assert history.curve("val/loss", "samples") == Curve([0.0, 160.0], [3.0, 2.5])
    assert history.restarts() == [10.0] and history.restarts("time") == [10.0]
    assert history.metrics == ["val/loss", "train/loss"] and history.seconds == 15.0
    assert math.isnan(history.curve("train/loss").y[0])


def test_smoothing_is_right_from_the_start():
    assert Curve([1.0, 2.0], [5.0, 5.0]).smooth(0.9, log=False).y == pytest.approx([5.0, 5.0])
    assert Curve([1.0, 2.0, 3.0], [1.0, math.nan, 2.0]).smooth(0.0, log=False) == Curve(
        [1.0, 3.0], [1.0, 2.0]
    )


@given(st.integers(0, 2000), st.integers(2, 600))
def test_a_thinned_curve_keeps_its_ends(count, most):
    numbers = [float(number) for number in range(count)]
    thinned = Curve(numbers, numbers).thin(most)
    assert len(thinned.x) == min(count, most) == len(set(thinned.x)) and thinned.x == thinned.y
    assert not count or (thinned.x[0], thinned.x[-1]) == (0.0, count - 1.0)


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([1.0], "▁"),
        ([0.0, 0.5, 1.0], "▁▅█"),
        ([1.0, math.nan, 2.0], "▁×█"),
        ([1.0, 10.0, 100.0, 1000.0, 10000.0], "▁▃▅▆█"),
    ],
)
def test_a_sparkline(values, bars):
    assert sparkline(values) == bars


@given(st.lists(st.floats(), max_size=200), st.integers(1, 30))
def test_any_numbers_make_a_sparkline(values, width):
    line = sparkline(values, width)
    assert len(line) == min(len(values), width) and set(line) <= {*BARS, "×"}


def test_a_large_file_is_read_in_places(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    rows = [
        {"step": step, "train/loss": float(step), "pad": "x" * (step % 100)}
        for step in range(20_000)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 20000, "tra')
    values = sample_values(path, "train/loss", 16)
    assert len(values) == 16
    assert values == sorted(values)
    assert values[0] == 0.0
    assert values[-1] == 19_999.0
    path.write_text('{"step": 1, "train/loss": 2.0}\n')
    assert sample_values(path, "train/loss", 16) == [2.0]
    assert sample_values(tmp_path / "none", "train/loss", 16) == []
