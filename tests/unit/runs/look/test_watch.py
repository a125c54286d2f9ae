"""`runs watch`: the screen."""

import os
import sys

import pytest

from launcher.runs.__main__ import main, parse
from launcher.runs.look.watch import screen
from support.terminal import in_terminal


@pytest.fixture
def some_runs(make_run):
    make_run("mlp", "old", state="completed", loss=0.5)
    make_run("gpt", "live", state="running", step=3, loss=1.5)
    make_run("mlp", "new", state="failed")


@pytest.fixture
def seen(some_runs, outputs):
    """Gives the lines of the screen for words of the command line."""

    def look(*words, width=200, height=50):
        return screen(parse(["watch", *words, "--outputs", str(outputs)]), width, height)

    return look


def ids(lines):
    return [line.split()[1] for line in lines[2:]]


def test_the_runs_at_work_come_first(seen, outputs):
    heading, *_ = lines = seen()
    assert ids(lines) == ["live", "new", "old"]
    assert heading.endswith("  3 runs: 1 running, 1 failed, 1 completed")
    assert ids(seen("--reverse")) == ["old", "new", "live"]
    assert ids(seen("--sort", "loss")) == ["old", "live", "new"]
    (outputs / "gpt/live/run.lock").unlink()
    assert "1 stale" in seen()[0]
    assert ids(seen("mlp", "--columns", "step")) == ["new", "old"]
    assert seen("state=paused") == [f"There are no runs in {outputs} that match state=paused."]


def test_the_screen_is_as_large_as_the_terminal(seen, make_run):
    for index in range(40):
        make_run("mlp", f"many{index}", loss=1.0)
    for width, height in ((200, 50), (80, 24), (40, 10), (20, 4), (12, 3)):
        lines = seen(width=width, height=height)
        assert len(lines) <= max(height, 4) and all(len(line) <= width for line in lines), lines
    assert seen(width=80, height=24)[-1] == "... and 22 more"


def test_it_prints_once_where_there_is_no_terminal(some_runs, outputs, capsys):
    assert main(["watch", "--outputs", str(outputs)]) == 0
    printed = capsys.readouterr().out
    assert "live" in printed and "\x1b" not in printed
    assert main(["watch", "state=stalle", "--outputs", str(outputs)]) == 2
    assert main(["watch", "--every", "0", "--outputs", str(outputs)]) == 2
    assert "--every 0: should be 0.1 to 3600 seconds." in capsys.readouterr().err


def test_ctrl_c_leaves_a_restored_terminal(some_runs, outputs):
    words = [sys.executable, "-m", "launcher.runs", "watch", "--every", "0.1"]

    def watch():
        os.execv(sys.executable, [*words, "--outputs", str(outputs)])

    code, output = in_terminal(watch, 100, {"NO_COLOR": "1"}, type_at=("3 runs", b"\x03"))
    assert code == 130 and "Traceback" not in output
    entered, left, shown = (output.rfind(f"\x1b[{mode}") for mode in ("?1049h", "?1049l", "?25h"))
    assert 0 <= entered < left and shown > output.rfind("\x1b[?25l") >= 0
