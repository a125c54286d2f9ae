"""The report as one HTML file: its data, and the page that a browser renders of it."""

import json
import re
import sys

import pytest

from launcher.runs.find_runs import find_runs
from launcher.runs.look import report
from launcher.runs.look.report import report_data

EVIL = "</script><script>document.body.dataset.broken = 1</script><img src=x>"
LONG = 2000


@pytest.fixture
def sweep(make_run, change):
    """Four runs of other learning rates. The second was preempted once, the fourth diverged; one
    has an evil name."""
    for number, (lr, last) in enumerate(((1e-4, 0.75), (1e-3, 0.25), (1e-2, 0.5), (1.0, None))):
        rows = [
            {"step": n, "time": 1.8e9 + n, "attempt": 1 + (n > LONG // 2), "samples": 8 * n,
             "train/loss": 1 / n}
            for n in range(1, LONG + 1)
        ]  # fmt: skip
        rows[9]["val/accuracy"], rows[-1]["val/accuracy"] = last or "nan", "nan"
        folder = make_run(
            "gpt",
            f"aaaa000{number}",
            config={"optimizer": {"lr": lr}, "note": EVIL if number == 3 else "fine"},
            state="failed" if last is None else "completed",
            best=last and {"metric": "val/accuracy", "value": last, "step": 10},
            rows=rows,
        )
        (attempt,) = json.loads(folder.record_path.read_text())["attempts"]
        first = {**attempt, "outcome": "preempted", "end_step": LONG // 2}
        attempts = [first, attempt] if number == 1 else [attempt]
        change(folder, name=EVIL if number == 3 else "gpt", attempts=attempts)


def data_of(page):
    pattern = r'<script type="application/json" id="data">(.*?)</script>'
    (text,) = re.findall(pattern, page, re.DOTALL)
    return json.loads(text)


@pytest.fixture
def reported(runs, outputs):
    """Writes the report; gives its data."""

    def call(*words):
        assert runs("report", *words) == (0, f"{outputs}/report.html\n", "")
        return data_of((outputs / "report.html").read_text())

    return call


def test_the_file_has_all_it_needs(reported, sweep):
    data = reported()
    assert (data["metric"], data["mode"]) == ("val/accuracy", "max"), "by the best's name"
    assert data["parameters"] == ["optimizer.lr", "note"], "the most distinct values first"
    assert data["states"] == {"completed": 3, "failed": 1}
    second, last = data["runs"][1], data["runs"][3]
    assert second["best"]["val/accuracy"] == {"value": 0.25, "step": 10, "last": None}
    assert second["restarts"]["step"] == [LONG // 2]
    assert [attempt["outcome"] for attempt in second["attempts"]] == ["preempted", "completed"]
    assert last["name"] == last["parameters"]["note"] == EVIL
    assert last["best"]["val/accuracy"] is None
    for curve in second["curves"].values():
        (count,) = {len(values) for values in curve.values()}
        assert curve.keys() == {"step", "time", "samples", "y"} and count <= 600
    steps = second["curves"]["train/loss"]["step"]
    assert (steps[0], steps[-1]) == (1, LONG)


def test_metric_and_direction_are_those_of_the_same_runs(make_run, outputs):
    """Whichever run comes first: here one that follows another metric, in the other direction."""
    values = {"0": ("val/f1", 0.9), **{str(n): ("val/loss", n / 10) for n in range(1, 4)}}
    for number, (metric, value) in values.items():
        line = {"step": 1, "time": 1.8e9, "attempt": 1, metric: value}
        rows = [line, line | {"step": 2, metric: value + 1}]
        best = {"metric": metric, "value": value, "step": 1}
        make_run("a", f"bbbb000{number}", best=best, rows=rows)
    found = find_runs(outputs)
    for order in (found, found[::-1]):
        data = report_data(order)
        assert (data["metric"], data["mode"]) == ("val/loss", "min")
        best = {run["id"]: (run["best"]["val/loss"] or {}).get("value") for run in data["runs"]}
        assert best == {"bbbb0000": None, "bbbb0001": 0.1, "bbbb0002": 0.2, "bbbb0003": 0.3}
    assert [report_data(found, name)["mode"] for name in ("val/f1", "val/loss")] == ["max", "min"]


def test_report_loads_nothing_from_elsewhere_and_no_text_ends_a_script(runs, sweep, outputs):
    runs("report")
    page = (outputs / "report.html").read_text()
    assert "default-src 'none'" in page and page.count("</script>") == 3 and EVIL not in page
    assert not re.search(r"<[^>]*\b(src|href)=", page[: page.index("<script")])


def test_many_runs_share_the_points(make_run, outputs, monkeypatch):
    monkeypatch.setattr(report, "MAX_TOTAL_POINTS", 1000)
    rows = [{"step": n, "time": n, "attempt": 1, "train/loss": 1.0} for n in range(1000)]
    for number in range(5):
        make_run("gpt", f"{number:08x}", config={"seed": number}, rows=rows)
    data = report_data(find_runs(outputs))
    curves = [run["curves"]["train/loss"] for run in data["runs"]]
    assert [len(curve["y"]) for curve in curves] == [200] * 5 and data["metric"] == "train/loss"
    assert "samples" not in curves[0], "lines without samples have no such axis"


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--metric", "val/acuracy"], "'--metric=val/acuracy': "),
        (["state=running"], "There are no runs in "),
        (["-o", "/no/a.html"], "--output=/no/a.html: "),
        (["-o", "."], "--output=.: cannot be written"),
    ],
)
def test_a_bad_command_is_a_sentence(runs, sweep, outputs, words, key):
    code, output, error = runs("report", *words)
    assert (code, output, error.count("\n")) == (2, "", 1) and error.startswith(key)
    assert not (outputs / "report.html").exists()


def test_without_plotly_the_way_to_get_it_is_named(runs, sweep, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert "torch-launcher[pictures]" in runs("report")[2]


@pytest.mark.parametrize("text", ["{{data}}", "{{"])
def test_a_text_that_looks_like_the_template_is_shown(make_run, change, reported, outputs, text):
    rows = [{"step": 1, "time": 1.0, "train/loss": 1.0}]
    change(make_run("gpt", "aaaa0001", config={"note": text}, rows=rows), name=text)
    assert [run["name"] for run in reported()["runs"]] == [text]
    assert f"<h1>{text}: 1 run</h1>" in (outputs / "report.html").read_text()
