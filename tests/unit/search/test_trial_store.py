"""The trials of a search in Optuna's journal: what is lost and what is not when it is cut off or
damaged."""

import json
import shutil
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from launcher.errors import ConfigError
from launcher.runs.stored_study import backend
from launcher.search.search import Search
from support.toy_trials import ToyRunner, search

SPACE = {
    "model.width": CategoricalDistribution(["8", "16"]),
    "x": FloatDistribution(0.0, 0.9),
    "z": FloatDistribution(1e-3, 1.0, log=True),
}
SETTINGS: dict[str, Any] = {"n_trials": 4, "enqueue": [{"x": 0.25}]}


def searched(folder: Path, **settings: Any) -> tuple[Search, ToyRunner]:
    runner = ToyRunner(folder)
    study = search(folder, runner, SPACE, **SETTINGS | settings)
    study.run()
    return study, runner


def optuna_trials(folder: Path) -> list[optuna.trial.FrozenTrial]:
    """The trials as another program reads them from the journal."""
    storage = optuna.storages.JournalStorage(backend(folder / "studies" / "toy" / "journal.log"))
    return optuna.load_study(study_name="toy", storage=storage).trials


@pytest.mark.parametrize(
    "settings",
    [
        {"sampler": "random"},
        {"sampler": "tpe", "sampler_options": {"n_startup_trials": 1}},
        {"sampler": "cmaes", "sampler_options": {"n_startup_trials": 1}},
    ],
    ids=lambda settings: settings["sampler"],
)
def test_a_journal_that_ends_after_any_operation_asks_the_same_trials(
    tmp_path: Path, settings: Any
) -> None:
    """A kill leaves such a journal. The runs exist, so that no trial is trained again."""
    whole, _ = searched(tmp_path / "whole", **settings)
    lines = whole.store.path.read_bytes().splitlines(keepends=True)
    assert len(lines) > 30
    parts = tmp_path / "parts"
    shutil.copytree(tmp_path / "whole", parts)
    for count in range(len(lines)):
        journal = parts / "studies" / "toy" / "journal.log"
        journal.write_bytes(b"".join(lines[:count]) + lines[count][: len(lines[count]) // 2])
        again, runner = searched(parts, **settings)
        assert [trial.params for trial in again.trials] == [
            trial.params for trial in whole.trials
        ], count
        assert [trial.origin for trial in again.trials] == [
            trial.origin for trial in whole.trials
        ], count
        assert runner.starts == []
        assert [trial.state for trial in optuna_trials(parts)] == [TrialState.COMPLETE] * 4, count


@pytest.mark.parametrize(
    "damage",
    [
        b"{",
        b"\0" * 4096,
        b"\0" * 40 + b"\n",
        b"12\n",
        b"[]\n{}\n",
        b'{"op_code":4,\n',
        b"\xff\xfe\n\n",
    ],
)
def test_a_damaged_end_of_a_journal_is_removed(tmp_path: Path, damage: bytes) -> None:
    whole, _ = searched(tmp_path, n_trials=2)
    before = whole.store.path.read_bytes()
    whole.store.path.write_bytes(before + damage)
    again, runner = searched(tmp_path, n_trials=3)
    assert again.store.path.read_bytes().startswith(before)
    assert (runner.starts, len(optuna_trials(tmp_path))) == ([2], 3)


def test_a_journal_with_a_damaged_middle_is_rejected_and_kept(tmp_path: Path) -> None:
    whole, _ = searched(tmp_path)
    lines = whole.store.path.read_bytes().splitlines(keepends=True)
    for place in (0, len(lines) // 2):
        damaged = b"".join([*lines[:place], b"no\n", *lines[place + 1 :]])
        whole.store.path.write_bytes(damaged)
        with pytest.raises(ConfigError, match="is damaged; move it away to start the study again"):
            searched(tmp_path)
        assert whole.store.path.read_bytes() == damaged


def test_a_lock_that_a_killed_search_has_left_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.runs.stored_study.LOCK_GRACE", 3)
    searched(tmp_path, n_trials=1)
    (tmp_path / "studies" / "toy" / "journal.log.lock").touch()
    _, runner = searched(tmp_path, n_trials=2)
    assert runner.starts == [1]
    assert not (tmp_path / "studies" / "toy" / "journal.log.lock").exists()


def test_optuna_reads_what_came_of_each_trial(tmp_path: Path) -> None:
    enqueue = [{"x": 0.31}, {"x": 0.5}, {"x": 0.6}, {"x": 0.95}]
    keys: dict[str, Any] = {"n_trials": 4, "enqueue": enqueue, "pruner": "asha"}
    study = search(tmp_path, ToyRunner(tmp_path), **keys)
    study.run()
    trials = optuna_trials(tmp_path)
    # A paused trial may still be promoted, so it has not ended.
    assert [trial.state.name for trial in trials] == ["COMPLETE", "WAITING", "WAITING", "FAIL"]
    assert trials[0].values == study.trials[0].values(study.settings)
    assert [*trials[0].intermediate_values] == [*range(10, 91, 10)]
    assert [trial.user_attrs.get("run") for trial in trials] == [
        trial.run for trial in study.trials
    ]
    seen = study.sampling.study.get_trials()
    assert [trial.state.name for trial in seen] == ["COMPLETE", "PRUNED", "PRUNED", "FAIL"]
    assert study.sampling.study.metric_names == ["val/loss"]


def test_trials_of_another_program_are_learned_from_and_not_run(tmp_path: Path) -> None:
    study, _ = searched(tmp_path, n_trials=1)
    other = optuna.load_study(
        study_name="toy", storage=optuna.storages.JournalStorage(backend(study.store.path))
    )
    params = {"model.width": "8", "x": 0.3, "z": 0.1}
    other.add_trial(optuna.trial.create_trial(params=params, distributions=SPACE, value=0.0))
    other.enqueue_trial({"x": 0.7})
    again, runner = searched(tmp_path, n_trials=2)
    assert [(trial.number, trial.params["x"]) for trial in again.trials] == [(0, 0.25), (2, 0.7)]
    assert runner.starts == [2]


def test_long_curves_are_thinned_in_the_journal(tmp_path: Path) -> None:
    study = search(tmp_path, ToyRunner(tmp_path), n_trials=1)
    study.store.spacing = 25
    study.run()
    assert [*optuna_trials(tmp_path)[0].intermediate_values] == [30, 60, 90]


def test_the_journal_has_no_path(tmp_path: Path) -> None:
    """So that a study may be moved."""
    study, _ = searched(tmp_path)
    assert all(
        str(tmp_path) not in json.dumps(json.loads(line)) for line in study.store.path.open()
    )
