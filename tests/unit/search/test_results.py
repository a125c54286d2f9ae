"""The table of trials."""

from optuna.distributions import CategoricalDistribution, FloatDistribution

from launcher.search.results import trial_table
from support.toy_trials import ToyRunner, search

SPACE = {"model.width": CategoricalDistribution(["8", "16"]), "x": FloatDistribution(0.0, 1.0)}
FIRST = [{"x": x, "model.width": 8} for x in (0.31, 0.32, 0.33, 0.95)]


def test_the_table_has_the_best_first(tmp_path):
    study = search(tmp_path, ToyRunner(tmp_path), SPACE, pruner="asha", first=FIRST, n_trials=4)
    study.run()
    lines = [line.split() for line in trial_table(study).lines()]
    assert lines[0] == ["trial", "state", "step", "rung", "val/loss", "width", "x", "run"]
    assert lines[1][:7] == ["0", "completed", "90", "2/2", "0.02111", "8", "0.31"]
    assert lines[2][:7] == ["1", "paused", "10", "1/2", "0.12", "8", "0.32"]
    assert lines[4][:7] == ["3", "invalid", "0", "0/2", "-", "8", "0.95"]
