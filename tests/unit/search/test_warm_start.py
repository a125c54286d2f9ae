"""Runs on disk as trials of a study."""

import json
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from launcher.rundir.folder import RunFolder
from launcher.runs.stored_run import StoredRun
from launcher.search.warm_start import add_known_runs, params_of
from support.toy_trials import ToyRunner, search

SPACE = {
    "n": IntDistribution(1, 8),
    "c": CategoricalDistribution(["0.001", "a"]),
    "+f": FloatDistribution(0.0, 1.0),
}


@pytest.mark.parametrize(
    ("config", "params"),
    [
        ({"n": 3, "c": 1e-3, "f": 1}, {"n": 3, "c": "0.001", "+f": 1.0}),
        ({"n": 3, "c": "a", "f": 0.5, "more": 1}, {"n": 3, "c": "a", "+f": 0.5}),
        ({"n": 9, "c": "a", "f": 0.5}, None),
        ({"n": 3, "c": "b", "f": 0.5}, None),
        ({"n": 3.5, "c": "a", "f": 0.5}, None),
        ({"n": 3, "c": "a"}, None),
        ({"n": 3, "c": "a", "f": "x"}, None),
    ],
)
def test_the_values_of_a_run_that_is_in_the_space(
    tmp_path: Path, config: dict[str, Any], params: Any
) -> None:
    folder = RunFolder(tmp_path / "run").create()
    folder.record_path.write_text(json.dumps({"config": config}))
    assert params_of(StoredRun.read(folder.path), SPACE) == params


def test_runs_of_another_study_are_learned_from_and_do_not_count(tmp_path: Path) -> None:
    first = search(tmp_path, ToyRunner(tmp_path), n_trials=12, sampler="random")
    first.run()
    for trial in first.trials:
        if trial.run is not None:
            record = tmp_path / trial.run / "run.json"
            record.write_text(json.dumps(json.loads(record.read_text()) | {"config": trial.params}))
    valid = [trial for trial in first.trials if trial.run is not None]

    keys: Any = {"n_trials": 2, "warm_start": True, "seed": 1, "name": "second"}
    study = search(tmp_path, runner := ToyRunner(tmp_path), **keys)
    assert add_known_runs(study) == len(valid) > 7
    study.run()
    again = search(tmp_path, other := ToyRunner(tmp_path), **keys)
    assert (add_known_runs(again), len(again.trials)) == (0, len(valid) + 2)
    again.run()
    assert (len(runner.starts), other.starts) == (2, [])
    assert [trial.params for trial in again.trials] == [trial.params for trial in study.trials]
    learned = again.sampling.study.trials[: len(valid)]
    assert {trial.state.name for trial in learned} == {"COMPLETE"}
