"""A hyperparameter search as pictures."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.runs.stored_study import StoredStudy
from launcher.runs.study_plot import draw_study
from support.studies import study_on_disk


def test_pictures_of_one_objective_have_all_trials_with_a_value(tmp_path: Path) -> None:
    study = StoredStudy.read(study_on_disk(tmp_path, paused=True))
    study.trials.insert(0, study.trials.pop())  # the invalid one
    titles, curves = {}, 0
    for name, figure in draw_study(study):
        titles[name] = figure.axes[0].get_title()
        curves += len(figure.axes[0].lines) if name == "curves" else 0
        if name == "history":
            assert figure.axes[0].collections[0].get_offsets()[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    assert [*titles] == ["history", "curves", "importances", "parallel"]
    assert (titles["importances"], curves) == ("Importances for the value at step 10", 6)


def test_pictures_of_several_objectives_have_a_front(tmp_path: Path) -> None:
    study = StoredStudy.read(study_on_disk(tmp_path, ("val/loss", "val/accuracy")))
    labels = {name: figure.axes[0].get_ylabel() for name, figure in draw_study(study)}
    assert [*labels] == ["history", "front", "importances", "parallel"]
    assert (labels["history"], labels["front"]) == ("val/loss", "val/accuracy")


def test_pictures_of_one_trial_are_drawn_without_warnings(tmp_path: Path) -> None:
    study = StoredStudy.read(study_on_disk(tmp_path))
    study.trials = study.trials[:1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # What other tests have left open is collected at any time.
        warnings.simplefilter("ignore", ResourceWarning)
        assert len(list(draw_study(study))) == 4


def test_pictures_are_rejected_without_values(tmp_path: Path) -> None:
    study = StoredStudy.read(study_on_disk(tmp_path))
    study.trials = study.trials[-1:]
    with pytest.raises(ConfigError, match="no trial has a value of val/loss yet"):
        next(draw_study(study))


def test_the_command_writes_pngs(runs: Any, outputs: Path) -> None:
    folder = study_on_disk(outputs)
    names = [
        folder / f"plot-{name}.png" for name in ("history", "curves", "importances", "parallel")
    ]
    assert runs("plot", "0123abcd") == (0, "".join(f"{name}\n" for name in names), "")
    assert all(name.read_bytes().startswith(b"\x89PNG") for name in names)
