"""Groups of runs that differ in the seed alone: their table, and their bands."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from launcher.rundir.history import Curve
from launcher.runs.over import spread
from launcher.runs.series import band

LOSSES = {"adamw": [0.2, 0.3, 0.4], "sgd": [0.6, 0.5]}


@pytest.fixture
def sweep(make_run: Any) -> None:
    """Two optimizers with several seeds. `data.seed` follows the seed; one run has failed."""
    for number, (optimizer, losses) in enumerate(LOSSES.items()):
        for seed, loss in enumerate(losses):
            add(make_run, optimizer, seed, loss, f"{number}{seed}")
    add(make_run, "sgd", 2, 99.0, "12", state="failed")


def add(
    make_run: Any, optimizer: str, seed: int, loss: float, id: str, state: str = "completed"
) -> None:
    config = {
        "seed": seed,
        "data": {"seed": seed},
        "optimizer": {"lr": 0.1 if optimizer == "sgd" else 0.001},
    }
    best = {"metric": "val/loss", "value": loss, "step": 10}
    choices = {"optimizer": optimizer}
    folder = make_run(
        "toy",
        id,
        config=config,
        choices=choices,
        best=best,
        state=state,
        overrides=[f"seed={seed}"],
    )
    rows = [{"step": step, "train/loss": loss * (21 - step), "val/loss": loss} for step in (10, 20)]
    folder.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = json.loads(folder.record_path.read_text())
    record["logged"] = None
    folder.record_path.write_text(json.dumps(record))


def test_the_table_groups_runs_over_seeds(sweep: None, runs: Any) -> None:
    code, out, err = runs("list", "--over", "seed")
    assert (code, err) == (0, "")
    lines = [line.split("  ") for line in out.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells[0] == ["name", "differs in", "state", "n", "best val/loss", "train/loss"]
    assert cells[1] == ["toy", "optimizer=adamw", "completed", "3", "0.3 ± 0.1", "0.3 ± 0.1"]
    assert cells[2] == [
        "toy",
        "optimizer=sgd",
        "2 completed, 1 failed",
        "2",
        "0.55 ± 0.071",
        "0.55 ± 0.071",
    ]


def test_json_has_the_values_of_completed_runs(sweep: None, runs: Any) -> None:
    groups = json.loads(
        runs(
            "--over", "seed", "--columns", "val/loss", "--sort", "val/loss", "--reverse", "--json"
        )[1]
    )
    assert [group["differs"] for group in groups] == [{"optimizer": "sgd"}, {"optimizer": "adamw"}]
    assert [group["n"] for group in groups] == [2, 3]
    for group, losses in zip(groups, reversed(LOSSES.values()), strict=True):
        found = group["metrics"]["val/loss"]
        assert found["values"] == losses
        assert (found["mean"], found["sd"]) == (statistics.fmean(losses), statistics.stdev(losses))


def test_over_another_key(sweep: None, runs: Any) -> None:
    groups = json.loads(runs("list", "state=completed", "--over", "optimizer", "--json")[1])
    assert [(group["differs"]["seed"], group["n"]) for group in groups] == [
        ("0", 2),
        ("1", 2),
        ("2", 1),
    ]
    assert groups[2]["metrics"]["best val/loss"]["sd"] is None


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("sede", "'--over=sede': no run has this key; did you mean seed?"),
        ("val/loss", "--over=val/loss: is not a key"),
    ],
)
def test_bad_keys_are_rejected(sweep: None, runs: Any, key: str, sentence: str) -> None:
    code, out, err = runs("list", "--over", key)
    assert (code, out) == (2, "")
    assert sentence in err


@pytest.mark.parametrize(
    ("values", "text"),
    [([], "-"), ([0.5], "0.5"), ([0.1832, 0.2], "0.1916 ± 0.012"), ([1.0, 1.0], "1 ± 0")],
)
def test_spread(values: list[float], text: str) -> None:
    assert spread(values) == text


def test_a_band_is_where_all_curves_have_values() -> None:
    found = band([Curve([1, 2, 3], [1, 2, 3]), Curve([1, 2, 3], [3, math.nan, 5]), Curve([], [])])
    assert (found.x, found.mean) == ([1, 3], [2, 4])
    assert found.low == pytest.approx([2 - math.sqrt(2), 4 - math.sqrt(2)])
    assert found.high == pytest.approx([2 + math.sqrt(2), 4 + math.sqrt(2)])


def test_a_band_on_a_logarithmic_scale_stays_positive() -> None:
    found = band([Curve([1, 2], [0.01, 1]), Curve([1, 2], [1, 0])], log=True)
    assert (found.x, found.mean) == ([1], pytest.approx([0.1]))
    assert 0 < found.low[0] < 0.1 < found.high[0]
    assert band([]).x == band([Curve([], [])]).x == []


def test_plot_and_report_draw_bands(sweep: None, runs: Any, outputs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for metric in ("train/loss", "val/loss"):
        code, _, err = runs(
            "plot", "seed>-1", "--over", "seed", "--metric", metric, "-o", tmp_path / "plot.svg"
        )
        assert (code, err) == (0, "")
        text = (tmp_path / "plot.svg").read_text()
        assert "FillBetweenPolyCollection" in text or "PolyCollection" in text
    assert (
        "are at no equal times"
        not in runs("plot", "seed>-1", "--over", "seed", "--against", "samples")[2]
    )
    code, _, err = runs("plot", "seed>-1", "--over", "seed", "--against", "time")
    assert code == 2
    assert "--over: the runs have no values at equal times" in err
    assert runs("report", "--over", "seed")[0] == 0
    page = (outputs / "report.html").read_text()
    assert '"groups":[{"label":"optimizer=adamw","runs":["00","01","02"]}' in page
