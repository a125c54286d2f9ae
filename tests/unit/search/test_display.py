"""The table of trials, live on a terminal, and lines elsewhere."""

import sys
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from launcher.rundir import logs
from launcher.search.display import Display, best_first, trial_table
from launcher.search.search import Search
from support.terminal import in_terminal, screen
from support.toy_trials import ToyRunner, search

SPACE = {"model.width": CategoricalDistribution(["8", "16"]), "x": FloatDistribution(0.0, 1.0)}
FIRST = [{"x": x, "model.width": 8} for x in (0.31, 0.32, 0.33, 0.95)]


def studied(folder: Path) -> Search:
    study = search(folder, ToyRunner(folder), SPACE, pruner="asha", enqueue=FIRST, n_trials=4)
    study.run()
    return study


def test_the_columns_that_fit(tmp_path: Path) -> None:
    study = studied(tmp_path)
    wide = list(trial_table(study, best_first(study), None).lines())
    assert wide[0].split() == ["trial", "state", "step", "rung", "val/loss", "width", "x", "run"]
    assert wide[1].split()[:7] == ["0", "completed", "90", "2/2", "0.02111", "8", "0.31"]
    assert wide[2].split()[:7] == ["1", "paused", "10", "1/2", "0.12", "8", "0.32"]
    assert wide[4].split()[:7] == ["3", "invalid", "0", "0/2", "-", "8", "0.95"]
    headings = {
        width: next(iter(trial_table(study, best_first(study), width).lines(width))).split()
        for width in (60, 40, 30)
    }
    assert headings[60] == ["trial", "state", "step", "rung", "val/loss", "width", "x"]
    assert headings[40] == ["trial", "state", "val/loss", "width", "x"]
    assert headings[30] == ["trial", "state", "val/loss"]


@pytest.mark.parametrize("width", [30, 80])
def test_the_table_is_redrawn_and_erased(tmp_path: Path, width: int) -> None:
    def act() -> None:
        sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115 - pytest has put its own in its place
        logs.console.cache_clear()
        with Display() as display:
            keys = {"pruner": "asha", "enqueue": FIRST, "n_trials": 4}
            study = search(tmp_path, ToyRunner(tmp_path), SPACE, say=display.say, **keys)
            study.show = display.show
            study.run()

    code, output = in_terminal(act, width)
    assert code == 0, output
    assert output.count("state") > 2 and "running" in output
    lines = screen(output, width)
    assert "".join(lines).count("trial 0: completed, val/loss 0.02111, the best so far") == 1
    assert not any("state" in line for line in lines), lines
