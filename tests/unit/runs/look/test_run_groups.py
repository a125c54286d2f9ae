"""Groups of runs that differ in the seed alone: their table, and their bands."""

import json
import math

import pytest

from launcher.rundir.folder import RunFolder
from launcher.rundir.history import Curve
from launcher.runs.find_runs import find_runs
from launcher.runs.look.plot import label_of
from launcher.runs.look.run_groups import group_runs, group_table
from launcher.runs.look.series import band

LOSSES = {"adamw": [0.2, 0.3, 0.4], "sgd": [0.6, 0.5]}


@pytest.fixture
def sweep(make_run, change):
    """Two optimizers with several seeds. `data.seed` follows the seed; one run has failed."""

    def add(optimizer: str, seed: int, loss: float, id: str, state: str = "completed") -> None:
        lr = 0.1 if optimizer == "sgd" else 0.001
        folder = make_run(
            "toy",
            id,
            config={"seed": seed, "data": {"seed": seed}, "optimizer": {"lr": lr}},
            choices={"optimizer": optimizer},
            best={"metric": "val/loss", "value": loss, "step": 10},
            state=state,
            overrides=[f"seed={seed}"],
            rows=[{"step": n, "train/loss": loss * (21 - n), "val/loss": loss} for n in (10, 20)],
        )
        change(folder, logged=None)

    for number, (optimizer, losses) in enumerate(LOSSES.items()):
        for seed, loss in enumerate(losses):
            add(optimizer, seed, loss, f"{number}{seed}")
    add("sgd", 2, 99.0, "12", state="failed")


def test_the_table_groups_runs_over_seeds(sweep, runs, outputs):
    code, out, err = runs("list", "--over", "seed")
    assert (code, err) == (0, "")
    lines = [line.split("  ") for line in out.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    spreads = ["0.3 ± 0.1"] * 2, ["0.55 ± 0.071"] * 2
    assert cells == [
        ["name", "differs in", "state", "n", "best val/loss", "train/loss"],
        ["toy", "optimizer=adamw", "3 completed", "3", *spreads[0]],
        ["toy", "optimizer=sgd", "2 completed, 1 failed", "2", *spreads[1]],
    ]
    narrow = group_table(
        group_runs(find_runs(outputs), "seed"), ["best val/loss", "train/loss"], 40
    )
    heading, first, _ = narrow.lines(40)
    assert len(first) <= 40 and "adamw" in first and "best val/loss" in heading


@pytest.mark.parametrize("value", [None, "nan", "inf"])
def test_a_mean_says_of_how_many_runs_it_is(sweep, runs, outputs, change, value):
    """The other runs of its group have no value of the metric, or none that is finite."""
    newest = {} if value is None else {"val/loss": [value, 20]}
    change(RunFolder(outputs / "toy" / "00"), logged={"curve": "", "newest": newest})
    lines = runs("list", "--over", "seed", "--columns", "val/loss")[1].splitlines()
    assert [line.split("  ")[-1].strip() for line in lines[1:]] == [
        "0.35 ± 0.071 (2 of 3)",
        "0.55 ± 0.071",
    ]
    found = json.loads(runs("list", "--over", "seed", "--columns", "val/loss", "--json")[1])
    assert [group["averaged"] for group in found] == [{"val/loss": 2}, {"val/loss": 2}]
    assert [group["n"] for group in found] == [3, 2]


def test_json_has_the_values_of_completed_runs(sweep, runs):
    words = ("--columns", "val/loss", "--sort", "val/loss", "--reverse", "--json")
    groups = json.loads(runs("--over", "seed", *words)[1])
    assert [group["differs"] for group in groups] == [{"optimizer": "sgd"}, {"optimizer": "adamw"}]
    assert [group["n"] for group in groups] == [2, 3]
    for group, losses in zip(groups, reversed(LOSSES.values()), strict=True):
        assert group["metrics"]["val/loss"] == losses


@pytest.mark.parametrize(("key", "hint"), [("sede", "did you mean seed?"), ("val/loss", "a key")])
def test_bad_keys_are_rejected(sweep, runs, key, hint):
    code, out, err = runs("list", "--over", key)
    assert (code, out) == (2, "") and f"--over={key}" in err and hint in err


def test_a_band_is_where_all_curves_have_values_and_positive_on_a_logarithmic_scale():
    found = band([Curve([1, 2, 3], [1, 2, 3]), Curve([1, 2, 3], [3, math.nan, 5]), Curve([], [])])
    assert (found.x, found.mean) == ([1, 3], [2, 4])
    assert found.low == pytest.approx([2 - math.sqrt(2), 4 - math.sqrt(2)])
    assert found.high == pytest.approx([2 + math.sqrt(2), 4 + math.sqrt(2)])
    assert found.count == 2
    found = band([Curve([1, 2], [0.01, 1]), Curve([1, 2], [1, 0])], log=True)
    assert (found.x, found.mean) == ([1], pytest.approx([0.1]))
    assert 0 < found.low[0] < 0.1 < found.high[0]
    assert band([]).x == band([Curve([], [])]).x == []


def test_plot_and_report_draw_bands(sweep, runs, outputs, tmp_path):
    pytest.importorskip("matplotlib")
    words = ("plot", "seed>-1", "--over", "seed")
    assert runs(*words, "--metric", "val/loss", "-o", tmp_path / "plot.svg")[0] == 0
    assert "PolyCollection" in (tmp_path / "plot.svg").read_text()
    adamw, sgd = group_runs(find_runs(outputs), "seed")
    assert label_of(adamw, 3) == "optimizer=adamw (n=3)"
    assert label_of(sgd, 2) == "optimizer=sgd (n=2 of 3)"
    assert runs("report", "--over", "seed")[0] == 0
    page = (outputs / "report.html").read_text()
    assert '"groups":[{"label":"optimizer=adamw","runs":["toy/00","toy/01","toy/02"]}' in page
