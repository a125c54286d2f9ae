"""Pictures of runs by matplotlib."""

import sys

import pytest

from launcher.runs.find_runs import find_runs
from launcher.runs.look.plot import draw


@pytest.fixture
def pair(make_run):
    """Two runs of other learning rates; the second was resumed at step 20."""
    for number, lr in enumerate((0.1, 0.2)):
        rows = [
            {"step": n, "time": float(n), "attempt": 1 + (number and n > 20), "samples": 8 * n,
             "train/loss": "nan" if n == 30 else 9.0 / n}
            for n in range(10, 50, 10)
        ]  # fmt: skip
        first = {"step": 0, "time": 0.0, "attempt": 1, "samples": 0, "val/loss": 4.0}
        config = {"optimizer": {"lr": lr}, "model": {"name": "$a_b$"}}
        make_run("gpt", f"aaaa000{number}", config=config, rows=[first, *rows])


def panel(outputs, metric="train/loss", smoothing: float | None = 0.9):
    (drawn,) = draw(find_runs(outputs), [metric], smoothing).axes
    return drawn


@pytest.mark.slow
def test_a_file_is_written_and_named(runs, pair, outputs, tmp_path):
    words = ("--metric", "val/loss,train/loss")
    assert runs("plot", "aaaa0000", "aaaa0001", *words)[:2] == (0, f"{outputs}/plot.png\n")
    assert (outputs / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert runs("plot", "gpt/aaaa0001", "-o", tmp_path / "a.svg")[0] == 0
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()


def test_plot_draws_the_curves_of_the_metric(pair, outputs):
    drawn = panel(outputs)
    labels = [text.get_text() for text in drawn.get_legend().get_texts()]
    assert labels == ["aaaa0000 optimizer.lr=0.1", "aaaa0001 optimizer.lr=0.2"]
    smooth, raw, dots, *second = drawn.lines
    assert list(smooth.get_xdata()) == [10, 20, 40], "without the value that is not a number"
    assert len(raw.get_xdata()) == 4 and raw.get_alpha() < 0.5
    assert (dots.get_linestyle(), dots.get_marker(), list(dots.get_ydata())) == ("None", "o", [4.0])
    restart = second[-1]
    assert restart.get_linestyle() == ":" and list(restart.get_xdata()) == [20, 20]
    assert drawn.get_xlabel() == "step" and drawn.get_yscale() == "linear"


@pytest.mark.parametrize(("points", "most"), [(1, 0.0), (10, 0.0), (20, 0.1), (1000, 0.1)])
def test_the_default_smoothing_ends_where_the_data_ends(make_run, outputs, points, most):
    """A loss that falls from 1 to 0: the line's end is off by its lag, at most a tenth of the
    fall."""
    rows = [{"step": step, "train/loss": 1 - step / points} for step in range(1, points + 1)]
    make_run("gpt", "aaaa0000", config={}, rows=rows)
    line = panel(outputs, smoothing=None).lines[0]
    assert len(line.get_ydata()) == points and 0 <= line.get_ydata()[-1] <= most
    lines = len(panel(outputs, smoothing=None).lines) - len(panel(outputs, smoothing=0.0).lines)
    assert lines == (points > 10), "raw values behind a smoothed line"


def test_many_runs_are_drawn_and_some_labelled(make_run, outputs):
    rows = [{"step": 1, "train/loss": 2.0}, {"step": 2, "train/loss": 1e-9}]
    for number in range(20):
        make_run(f"gpt{number % 2}", f"{number // 2:08x}", config={"seed": number}, rows=rows)
    drawn = panel(outputs, smoothing=0.0)
    labels = [text.get_text() for text in drawn.get_legend().get_texts()]
    assert len(labels) == 12 and labels[0] == "gpt0/00000000 seed=0", "two runs have one id"
    assert sum(len(line.get_xdata()) == 2 for line in drawn.lines) == 20
    assert drawn.get_yscale() == "log", "values of all sizes"


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("gpt/aaaa0000 --metric val/los", "'--metric=val/los': "),
        ("gpt/aaaa0000 --metric ,", "--metric=: names no metric"),
        ("gpt/aaaa0000 --smoothing 1", "--smoothing=1: "),
        ("gpt/aaaa0000 -o a.txt", "--output=a.txt: the name should end in .png"),
        ("gpt/aaaa0000 -o /no/a.png", "--output=/no/a.png: cannot be written"),
        ("empty", "empty/bbbb0000: nothing has been logged"),
    ],
)
def test_a_bad_command_is_a_sentence(runs, pair, make_run, words, key):
    make_run("empty", "bbbb0000")
    code, output, error = runs("plot", *words.split())
    assert (code, output, error.count("\n")) == (2, "", 1) and error.startswith(key)


def test_without_matplotlib_the_way_to_get_it_is_named(runs, pair, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "torch-launcher[pictures]" in runs("plot", "aaaa0000")[2]
