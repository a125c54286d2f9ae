"""The report as one HTML file: its data, and the page that a browser renders of it."""

import base64
import json
import re
import sys
from html.parser import HTMLParser

import pytest

from launcher.runs.find_runs import find_runs
from launcher.runs.look import report
from launcher.runs.look.report import page, plotly_source, report_data, study_data
from launcher.runs.stored_study import StoredStudy
from support.browser import in_browser, needs_browser
from support.studies import study_on_disk

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
    assert data["parameters"] == [
        {"key": "optimizer.lr", "numeric": True, "log": True},
        {"key": "note", "numeric": False, "log": False},
    ], "the key with the most distinct values first"
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

    class Links(HTMLParser):
        found: list = []

        def handle_starttag(self, tag, attrs):
            self.found += [value for name, value in attrs if name in ("src", "href")]

    Links().feed(page[: page.index("<script")])
    assert Links.found == []


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
    ],
)
def test_a_bad_command_is_a_sentence(runs, sweep, outputs, words, key):
    code, output, error = runs("report", *words)
    assert (code, output, error.count("\n")) == (2, "", 1) and error.startswith(key)
    assert not (outputs / "report.html").exists()


def test_without_plotly_the_way_to_get_it_is_named(runs, sweep, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert "torch-launcher[pictures]" in runs("report")[2]


PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


@pytest.fixture
def many_keys(make_run, change):
    """Eight runs that differ in 40 keys with long names and values; with notes and media. The
    second was preempted once; the last has an evil name, and failed. The last three have one
    model."""
    for number in range(8):
        kind = min(number, 5)
        keys = {
            f"a_rather_long_name_{k}": f"a value of {k} {kind % (k % 5 + 2)}" for k in range(40)
        }
        rows = [
            {"step": n, "time": 1.8e9 + n, "attempt": 1, "samples": n, "train/loss": 1 / n}
            | {f"val/{'a_long_name' * 9}": 316 / n**3}
            | ({"val/loss": 0.5 + number} if n == 10 else {})
            for n in range(1, 11)
        ]
        typed = [f"model.{key}={value}" for key, value in keys.items()]
        folder = make_run(
            "gpt",
            f"cccc000{number}",
            config={
                "model": keys,
                "trainer": {"lanes": None},
                "run": {"note": "at the start"},
                "seed": number,
            },
            best={"metric": "val/loss", "value": 0.5 + number, "step": 10},
            overrides=["trainer.max_steps=10", *typed],
            choices={"model": "gpt", "data": "text"},
            rows=rows,
            state="failed" if number == 7 else "completed",
        )
        if number == 7:
            change(folder, name=EVIL)
        if number == 1:
            (attempt,) = json.loads(folder.record_path.read_text())["attempts"]
            first = {**attempt, "outcome": "preempted", "end_step": 5}
            change(folder, attempts=[first, attempt])
        (folder.path / "images/10").mkdir(parents=True)
        (folder.path / "images/10/shown.png").write_bytes(base64.b64decode(PNG))
        histogram = {"counts": [1, 2, number], "edges": [0, 1, 2, 3]}
        media = [
            {"kind": "image", "key": "shown", "path": "images/10/shown.png"},
            {"kind": "image", "key": "evil", "path": "../../../../etc/hostname.png"},
            {"kind": "histogram", "key": "weights", **histogram},
        ]
        lines = (json.dumps({"step": 10, "time": 1.0, **row}) + "\n" for row in media)
        (folder.path / "media.jsonl").write_text("".join(lines))


@pytest.mark.parametrize("text", ["{{data}}", "{{"])
def test_a_text_that_looks_like_the_template_is_shown(make_run, change, reported, outputs, text):
    rows = [{"step": 1, "time": 1.0, "train/loss": 1.0}]
    change(make_run("gpt", "aaaa0001", config={"note": text}, rows=rows), name=text)
    assert [run["name"] for run in reported()["runs"]] == [text]
    assert f"<h1>{text}: 1 runs</h1>" in (outputs / "report.html").read_text()


def test_notes_and_media_are_part_of_the_page(runs, many_keys, reported):
    assert runs("show", "model=gpt", "--label", "new")[1].count(": [new] at the start") == 8
    assert runs("show", "cccc0001", "--note", "a good one", "--label", "paper")[0] == 0
    assert runs("show", "cccc0001", "--unlabel", "new")[1] == "gpt/cccc0001: [paper] a good one\n"
    assert runs("show", "cccc0001", "--label", "a b")[0] == 2
    assert "a good one" in runs("show", "cccc0001")[1]
    (listed,) = json.loads(runs("list", "label=paper", "--json")[1])
    assert (listed["id"], listed["note"], listed["labels"]) == ("cccc0001", "a good one", ["paper"])
    data = reported()
    assert [run["note"] for run in data["runs"]][:2] == ["at the start", "a good one"]
    assert data["shared"] == ["data=text", "model=gpt", "trainer.max_steps=10"]
    assert list(data["media"]["keys"]) == ["shown (image)", "weights (histogram)"]
    assert data["media"]["left_out"] == 8, "the images outside the folders of the runs"


ACTIONS = """
const text = selector => [...document.querySelectorAll(selector)].map(node => node.textContent);
const ids = () => text("#runs tbody tr:not(.fold) td:first-child").map(id => id.slice(-1)).join("");
const set = (id, value, name = "value") => {
  element(id)[name] = value; element(id).dispatchEvent(new Event("input"));
};
const traces = () => element("curves").data;
function overlapping(id) {
  const boxes = [...element(id).querySelectorAll("svg text")]
    .filter(node => node.textContent.trim())
    .map(node => [node.textContent, node.getBoundingClientRect()])
    .filter(([, box]) => box.width);
  const found = boxes.flatMap(([one, a], i) => boxes.slice(i + 1).filter(([, b]) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3).map(([other]) => [one, other]));
  const { left, right } = element(id).getBoundingClientRect();
  const outside = boxes.filter(([, box]) => box.left < left - 2 || box.right > right + 2);
  return [id, ...found, ...outside.map(([text]) => text), boxes.length > 5];
}
const result = { problems: [] };
for (const width of [360, 1200]) {
  document.body.style.width = `${width}px`;
  for (const id of ["curves", "parallel", "scatter", "attempts", "histograms"])
    Plotly.purge(element(id));
  drawAll();
  for (const bands of [true, false]) {
    set("bands", bands, "checked");
    result.problems.push(overlapping("curves"));
  }
  for (const id of ["parallel", "scatter", "attempts", "histograms"])
    if (!element(id).hidden) result.problems.push(overlapping(id));
  const edge = document.body.getBoundingClientRect().right + 1;
  result.problems.push(["wide", ...[...document.body.querySelectorAll("*")]
    .filter(node => !node.parentElement.closest(".wide, .plot, #study"))
    .filter(node => node.getBoundingClientRect().right > edge)
    .map(node => node.outerHTML.slice(0, 80)), true]);
}
Object.assign(result, { first: ids(), facts: text("#facts").join(), fold: text("tr.fold").join(),
  best: text("tr.best td:first-child").join(), columns: text("#runs th").slice(0, 3),
  shared: element("shared").textContent, smoothing: element("smoothing").value,
  parallel: element("parallel").data?.[0].line.color.length });
result.images = [...document.querySelectorAll("#images img")].map(image => image.naturalWidth);
result.scales = [...element("metric").options].map(({ value }) => {
  set("metric", value);
  return [value.slice(0, 10), element("log").checked, element("curves").layout.yaxis.type];
});
document.querySelector("tr.fold").click();
result.legend = text("#curves .legendtext").length;
[...document.querySelectorAll("th")].find(node => node.textContent === "seed").click();
result.sorted = ids();
document.querySelector("#runs tbody tr").click();
result.chosen = text("tr.chosen td:first-child").join();
result.widest = Math.max(...traces().map(trace => trace.line.width));
set("metric", "train/loss"); set("axis", "time"); set("log", true, "checked");
set("smoothing", 0.5);
const layoutOf = element("curves").layout;
result.curve = [layoutOf.yaxis.type, layoutOf.xaxis.title.text, traces().length];
set("axis", "step"); set("bands", true, "checked");
result.bands = traces().map(trace => trace.fill ?? trace.mode).slice(0, 3);
result.names = traces().map(trace => trace.name ?? "").filter(Boolean);
set("filter", "completed label=paper");
result.filtered = [ids(), element("count").textContent, element("scatter").data[0].x.length];
result.history = element("history").data.map(trace => `${trace.name}:${trace.x.length}`);
result.importances = element("importances").data.map(trace => trace.y[0]);
document.body.dataset.result = JSON.stringify(result);
"""


@needs_browser
def test_the_page_in_a_browser(runs, many_keys, reported, outputs, tmp_path):
    """All that the page can show, in one page: it is narrow, then wide, then used. The search is
    one of other runs."""
    runs("show", "cccc0002", "--label", "paper")
    study = study_data(StoredStudy.read(study_on_disk(tmp_path)))
    data = reported("--over", "seed") | {"study": study["study"]}
    file = outputs / "report.html"
    file.write_text(page(data, plotly_source()))
    result = in_browser(file, tmp_path, ACTIONS)
    assert [each for each in result["problems"] if each[1:] != [True]] == []
    assert (result["first"], result["fold"]) == ("0123456", "▸ 1 failed"), "the best first"
    assert result["best"] == "cccc0000" and "0.5 best val/loss (cccc0000)" in result["facts"]
    assert "1 times preempted" in result["facts"] and "device hours" in result["facts"]
    assert result["columns"] == ["id", "state", "best val/loss ↑"]
    assert result["shared"].startswith("All: data=text, model=gpt") and result["smoothing"] == "0"
    assert result["parallel"] in (7, None), "without the failed run; None: no WebGL"
    assert result["images"] == [1] * 8
    assert sorted(result["scales"]) == [
        ["train/loss", False, "linear"],
        ["val/a_long", True, "log"],
        ["val/loss", False, "linear"],
    ]
    assert (result["legend"], result["sorted"]) == (8, "01234567")
    assert (result["chosen"], result["widest"]) == ("cccc0000", 2.5)
    assert result["curve"] == ["log", "time (seconds)", 16], "smoothed over faint raw values"
    assert result["bands"] == ["lines", "tonexty", "lines"]
    assert [name[-5:] for name in result["names"]] == [*["(n=1)"] * 5, "(n=2)", "(n=1)"]
    assert result["filtered"] == ["2", "1 of 8 runs", 1]
    assert result["history"] == ["completed:6", "best:7"]
    assert result["importances"] == ["optimizer.lr"]
