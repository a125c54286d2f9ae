"""A hyperparameter search as it is read from disk, and its report."""

import math
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.runs.stored_study import StoredStudy, find_study
from support.browser import in_browser, needs_browser
from support.studies import study_on_disk


def test_states_and_values_are_those_of_the_runs(tmp_path: Path) -> None:
    study = StoredStudy.read(study_on_disk(tmp_path, paused=True))
    assert [trial.state for trial in study.trials] == [
        "paused",
        "paused",
        "completed",
        *["paused"] * 3,
        "invalid",
    ]
    assert [round(trial.values[0], 3) for trial in study.trials[:3]] == [1.0, 0.4, 0.233]
    assert [trial.number for trial in study.front] == [2]
    assert [round(y, 3) for y in study.best_so_far() if math.isfinite(y)] == [0.233] * 5
    assert study.common_step == 10


def test_the_parameter_that_decides_is_the_important_one(tmp_path: Path) -> None:
    for paused in (False, True):
        study = StoredStudy.read(study_on_disk(tmp_path / str(paused), paused=paused))
        shares = study.importances()
        assert shares["optimizer.lr"] > 0.7
        assert sum(shares.values()) == pytest.approx(1)


def test_the_front_of_two_objectives(tmp_path: Path) -> None:
    folder = study_on_disk(tmp_path, ("val/loss", "val/accuracy"))
    assert len(StoredStudy.read(folder).front) == 6, "none is better in both"
    study = StoredStudy.read(folder)
    for trial in study.trials[:2]:
        trial.values[1] = -1.0
    assert [trial.number for trial in study.front] == [2, 3, 4, 5]


def test_a_study_is_named_by_folder_name_or_id(tmp_path: Path) -> None:
    folder = study_on_disk(tmp_path)
    for word in (str(folder), "toy-0123abcd", "0123abcd"):
        assert find_study(word, tmp_path) == folder
    for word in ("toy", "0123", str(tmp_path)):
        assert find_study(word, tmp_path) is None


def test_a_study_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    folder = study_on_disk(tmp_path)
    whole = (folder / "journal.log").read_bytes()
    for damaged in (b"", b"no\n" + whole, whole.replace(b'"op_code":5', b'"op_code":99', 1)):
        (folder / "journal.log").write_bytes(damaged)
        with pytest.raises(
            ConfigError,
            match=r"journal\.log: is empty or damaged; repeat the command of the search",
        ):
            StoredStudy.read(folder)


ACTIONS = """
document.body.dataset.result = JSON.stringify({
  history: element("history").data.map(trace => `${trace.name}:${trace.x.length}`),
  front: element("front-part").hidden ? null : element("front").data[1].x.length,
  bars: element("importances").data.map(trace => trace.y[0]),
  hint: element("importances-hint").textContent,
  parallel: element("parallel").data[0].dimensions.map(dimension => dimension.label),
});
"""


@needs_browser
def test_the_report_in_a_browser(runs: Any, outputs: Path, tmp_path: Path) -> None:
    folder = study_on_disk(outputs, ("val/loss", "val/accuracy"))
    assert runs("report", "0123abcd") == (0, f"{folder}/report.html\n", "")
    result = in_browser(folder / "report.html", tmp_path, ACTIONS)
    assert result["history"] == ["completed:6", "best:7"]
    assert result["front"] == 6
    assert result["bars"] == ["optimizer.lr"] * 2
    assert result["hint"].startswith(
        "Importance of each parameter for the value of completed trials"
    )
    assert result["parallel"] == ["optimizer.lr", "model.width", "val/loss"]
