"""A hyperparameter search as it is read from disk."""

from pathlib import Path

import pytest

from launcher.errors import ConfigError
from launcher.runs.stored_study import StoredStudy, find_study
from support.studies import study_on_disk

TWO = ("val/loss", "val/accuracy")


def test_states_and_values_are_those_of_the_runs(tmp_path: Path) -> None:
    study = StoredStudy.read(study_on_disk(tmp_path, paused=True))
    states = ["paused", "paused", "completed", *["paused"] * 3, "invalid"]
    assert [study.state(trial) for trial in study.trials] == states
    values = [round(trial.values(study.goal)[0], 3) for trial in study.trials[:3]]
    assert values == [1.0, 0.4, 0.233]
    assert [trial.number for trial in study.front] == [2]
    assert study.common_step == 10


def test_the_front_of_two_objectives(tmp_path: Path) -> None:
    folder = study_on_disk(tmp_path, TWO)
    assert len(StoredStudy.read(folder).front) == 6, "none is better in both"
    study = StoredStudy.read(folder)
    for trial in study.trials[:2]:
        trial.values(study.goal)[1] = -1.0
    assert [trial.number for trial in study.front] == [2, 3, 4, 5]


def test_a_study_is_named_by_folder_name_or_id(tmp_path: Path) -> None:
    folder = study_on_disk(tmp_path)
    for word in (str(folder), "toy-0123abcd", "0123abcd"):
        assert find_study(word, tmp_path) == folder
    for word in ("toy", "0123", str(tmp_path)):
        assert find_study(word, tmp_path) is None


def test_a_study_without_a_run_is_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "studies" / "toy-0123abcd"
    folder.mkdir(parents=True)
    with pytest.raises(ConfigError, match="is a trial of this search; repeat its command"):
        StoredStudy.read(folder)
