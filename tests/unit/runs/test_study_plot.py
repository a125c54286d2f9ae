"""A hyperparameter search as a picture."""

from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.runs.study import StoredStudy
from launcher.runs.study_plot import draw_study
from support.studies import study_on_disk


def panels(study: StoredStudy) -> dict[str, Any]:
    return {panel.get_title("left"): panel for panel in draw_study(study).axes}


def test_the_panels_of_one_objective(tmp_path: Path) -> None:
    drawn = panels(StoredStudy.read(study_on_disk(tmp_path, paused=True)))
    assert list(drawn) == ["val/loss", "importance for the value at step 10", "parallel coordinates (blue: the best)"]
    assert [line.get_label() for line in drawn["val/loss"].lines] == ["paused", "completed", "best"]
    texts = {text.get_text() for text in drawn["parallel coordinates (blue: the best)"].texts}
    assert {"0.0001", "0.1", "8", "16"} <= texts, "the least and the greatest number, or all words"


def test_the_front_of_several_objectives(tmp_path: Path) -> None:
    drawn = panels(StoredStudy.read(study_on_disk(tmp_path, ("val/loss", "val/accuracy"))))
    assert len(drawn["Pareto front"].lines[1].get_xdata()) == 6
    assert drawn["Pareto front"].get_ylabel() == "val/accuracy (maximize)"


def test_a_search_without_values_is_a_sentence(tmp_path: Path) -> None:
    study = StoredStudy.read(study_on_disk(tmp_path))
    study.trials = study.trials[-1:]
    with pytest.raises(ConfigError, match="no trial has a value of val/loss yet"):
        draw_study(study)


def test_the_command_writes_a_png(runs: Any, outputs: Path) -> None:
    folder = study_on_disk(outputs)
    assert runs("plot", "0123abcd") == (0, f"{folder}/plot.png\n", "")
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")
