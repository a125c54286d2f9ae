"""A hyperparameter search as it is read from disk."""

import math

import optuna
import pytest

from launcher.errors import ConfigError
from launcher.runs.stored_study import StoredStudy, find_study
from support.studies import study_on_disk


def test_states_and_values_are_those_of_the_runs(tmp_path):
    folder = study_on_disk(tmp_path, paused=True)
    for damaged in ("{", "{}", "[1]"):
        (folder / "invalid" / f"{damaged}.json").write_text(damaged)
    study = StoredStudy.read(folder)
    states = ["paused", "paused", "completed", *["paused"] * 3, "invalid"]
    assert [study.state(trial) for trial in study.trials] == states
    values = [round(trial.value, 3) for trial in study.trials[:3]]
    assert values == [1.0, 0.4, 0.233]
    assert [round(y, 3) for y in study.best_so_far() if math.isfinite(y)] == [0.233] * 5
    assert study.common_step == 10


def test_a_study_is_named_by_folder_name_or_id(tmp_path):
    folder = study_on_disk(tmp_path)
    for word in (str(folder), "toy-0123abcd", "0123abcd"):
        assert find_study(word, tmp_path) == folder
    for word in ("toy", "0123", str(tmp_path)):
        assert find_study(word, tmp_path) is None


def test_a_study_without_a_run_is_a_sentence(tmp_path):
    folder = tmp_path / "studies" / "toy-0123abcd"
    folder.mkdir(parents=True)
    with pytest.raises(ConfigError, match="is a trial of this search; repeat its command"):
        StoredStudy.read(folder)


# ------------------------------------------------------------------------------ export and report
@pytest.mark.slow
def test_the_study_in_a_storage_of_optuna(runs, outputs, tmp_path):
    folder = study_on_disk(outputs, paused=True)
    url = f"sqlite:///{tmp_path}/study.db"
    assert runs("report", "0123abcd", f"--optuna={url}") == (0, f"{url}: study {folder.name}\n", "")
    study = optuna.load_study(study_name=folder.name, storage=url)
    states = ["PRUNED", "PRUNED", "COMPLETE", "PRUNED", "PRUNED", "PRUNED", "FAIL"]
    assert [trial.state.name for trial in study.trials] == states
    assert study.best_trial.params == {"optimizer.lr": 0.01, "model.width": "16"}
    assert [*study.best_trial.intermediate_values] == [10, 30]
    assert study.best_trial.user_attrs == {"run": "toy/00000002"}
    assert study.metric_names == ["val/loss"]


@pytest.mark.parametrize(
    ("word", "url", "message"),
    [
        ("0123abcd", "sqlite:///{}/two.db", "has a study toy-0123abcd already"),
        ("0123abcd", "sqlite:////no/such/folder/study.db", "--optuna=sqlite:////no/such"),
        ("state=completed", "sqlite:///{}/new.db", "needs the folder, name or id of one search"),
    ],
)
def test_a_storage_that_cannot_be_written_is_a_sentence(
    runs, outputs, tmp_path, word, url, message
):
    study_on_disk(outputs)
    runs("report", "0123abcd", f"--optuna=sqlite:///{tmp_path}/two.db")
    code, _, errors = runs("report", word, f"--optuna={url.format(tmp_path)}")
    assert code == 2 and message in errors and len(errors.splitlines()) == 1
