"""The report as one HTML file: its data, and the page that a browser renders of it."""

import base64
import json
import re
import sys
from html.parser import HTMLParser

import pytest

from launcher.runs.find_runs import find_runs
from launcher.runs.look import report
from launcher.runs.look.report import report_data
from support.browser import in_browser, needs_browser

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
    monkeypatch.setattr(report, "ALL_POINTS", 1000)
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


ACTIONS = """
const text = selector => [...document.querySelectorAll(selector)].map(node => node.textContent);
const ids = () => text("#runs tbody tr:not(.fold) td:first-child").join();
const result = { first: ids(), facts: text("#facts").join() };
result.best = text("tr.best td:first-child").join();
result.fold = text("tr.fold").join();
result.parallel = element("parallel").data?.[0].line.color.length;
document.querySelector("tr.fold").click();
result.labels = text(".xtitle, .ytitle");
result.legend = text("#curves .legendtext");
[...document.querySelectorAll("th")].find(node => node.textContent === "optimizer.lr").click();
result.sorted = ids();
document.querySelector("#runs tbody tr").click();
result.chosen = text("tr.chosen td:first-child").join();
result.widest = Math.max(...element("curves").data.map(trace => trace.line.width));
element("metric").value = "train/loss";
element("axis").value = "time";
element("log").checked = true;
element("log").dispatchEvent(new Event("input"));
const { layout: drawn, data: traces } = element("curves");
result.curve = [drawn.yaxis.type, drawn.xaxis.title.text, traces.length];
element("filter").value = "completed"; element("filter").dispatchEvent(new Event("input"));
result.filtered = [ids(), element("count").textContent, element("scatter").data[0].x.length];
document.body.dataset.result = JSON.stringify(result);
"""


@needs_browser
def test_the_page_in_a_browser(runs, sweep, outputs, tmp_path):
    """The page at first, and after sorting, choosing a run, another curve, and a filter."""
    runs("report")
    result = in_browser(outputs / "report.html", tmp_path, ACTIONS)
    assert result["first"] == "aaaa0000,aaaa0002,aaaa0001", "the best first"
    assert result["best"] == "aaaa0000" and result["fold"] == "▸ 1 failed"
    assert result["parallel"] in (3, None), "without the failed run; None: no WebGL"
    assert (
        "0.75 best val/accuracy (aaaa0000)" in result["facts"]
        and "1 times preempted" in result["facts"]
    )
    assert "val/accuracy" in result["labels"] and len(result["legend"]) == 4
    assert result["sorted"] == "aaaa0000,aaaa0001,aaaa0002,aaaa0003"
    assert result["chosen"] == "aaaa0000" and result["widest"] == 2.5
    assert result["curve"] == ["log", "time (minutes)", 8], "smoothed over faint raw values"
    assert result["filtered"] == ["aaaa0000,aaaa0001,aaaa0002", "3 of 4 runs", 3]


OVERLAPS = """
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
  return [found, outside.map(([text]) => text), boxes.length];
}
const texts = selector => [...document.querySelectorAll(selector)].map(node => node.textContent);
const result = {};
for (const id of ["curves", "parallel", "scatter", "attempts", "histograms"])
  if (!element(id).hidden) result[id] = overlapping(id);
result.images = [...document.querySelectorAll("#images img")].map(image => image.naturalWidth);
result.smoothing = element("smoothing").value;
result.shared = element("shared").textContent;
result.columns = texts("#runs th");
const edge = document.body.getBoundingClientRect().right + 1;
result.wide = [...document.body.querySelectorAll("*")]
  .filter(node => !node.parentElement.closest(".wide, .plot"))
  .filter(node => node.getBoundingClientRect().right > edge)
  .map(node => node.outerHTML.slice(0, 80));
result.scales = [...element("metric").options].map(({ value }) => {
  element("metric").value = value; element("metric").dispatchEvent(new Event("input"));
  return [value.slice(0, 10), element("log").checked, element("curves").layout.yaxis.type];
});
document.body.dataset.result = JSON.stringify(result);
"""


PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


@pytest.fixture
def many_keys(make_run):
    """Seven runs that differ in 40 keys with long names and values; with notes and media."""
    for number in range(7):
        keys = {
            f"a_rather_long_name_{k}": f"a value of {k} {number % (k % 5 + 2)}" for k in range(40)
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
            config={"model": keys, "trainer": {"lanes": None}, "run": {"note": "at the start"}},
            best={"metric": "val/loss", "value": 0.5 + number, "step": 10},
            overrides=["trainer.max_steps=10", *typed],
            choices={"model": "gpt", "data": "text"},
            rows=rows,
        )
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


def test_a_cell_is_blank_only_for_a_default(make_run, reported):
    """The values of a preset are no defaults, though nobody typed them."""
    for id, model, steps, words in (
        ("1", "cnn", 60, ["experiment=png"]),
        ("2", "cnn", 90, ["experiment=png", "trainer.max_steps=90"]),
        ("3", "gpt", 100, []),
        ("4", "gpt", 200, ["trainer.max_steps=200"]),
        ("5", "mlp", 100, ["model=mlp"]),
    ):
        choices = {"model": model, "experiment": "png" if model == "cnn" else None}
        steps, rows = {"trainer": {"max_steps": steps}}, [{"step": 1, "time": 1, "train/loss": 1.0}]
        make_run("gpt", id, config=steps, overrides=words, choices=choices, rows=rows)
    assert [" ".join(sorted(run["blank"])) for run in reported()["runs"]] == [
        *("", "", "experiment", "experiment model", "experiment trainer.max_steps")
    ], "a run with only defaults keeps them"


@pytest.mark.parametrize("text", ["{{data}}", "{{"])
def test_a_text_that_looks_like_the_template_is_shown(make_run, change, reported, outputs, text):
    rows = [{"step": 1, "time": 1.0, "train/loss": 1.0}]
    change(make_run("gpt", "aaaa0001", config={"note": text}, rows=rows), name=text)
    assert [run["name"] for run in reported()["runs"]] == [text]
    assert f"<h1>{text}: 1 runs</h1>" in (outputs / "report.html").read_text()


def test_notes_and_media_are_part_of_the_page(runs, many_keys, reported):
    assert runs("show", "model=gpt", "--label", "new")[1].count(": [new] at the start") == 7
    assert runs("show", "cccc0001", "--note", "a good one", "--label", "paper")[0] == 0
    assert runs("show", "cccc0001", "--unlabel", "new")[1] == "gpt/cccc0001: [paper] a good one\n"
    assert runs("show", "cccc0001", "--label", "a b")[0] == 2
    assert "a good one" in runs("show", "cccc0001")[1]
    (listed,) = json.loads(runs("list", "label=paper", "--json")[1])
    assert (listed["id"], listed["note"], listed["labels"]) == ("cccc0001", "a good one", ["paper"])
    data = reported()
    assert [run["note"] for run in data["runs"]][:2] == ["at the start", "a good one"]
    assert data["shared"] == {"model": "gpt", "data": "text"}
    assert list(data["media"]["keys"]) == ["shown (image)", "weights (histogram)"]
    assert data["media"]["left_out"] == 7, "the images outside the folders of the runs"


@needs_browser
@pytest.mark.parametrize("width", [360, 1200])
def test_no_labels_overlap(runs, many_keys, outputs, tmp_path, width):
    """40 keys; a screen of 400 pixels has 20 at each side."""
    runs("report")
    page = outputs / "report.html"
    page.write_text(page.read_text().replace("<body>", f'<body style="width: {width}px">'))
    result = in_browser(page, tmp_path, OVERLAPS, has_webgl=width > 400)
    for id in ("curves", "scatter", "attempts"):
        overlapping, outside, count = result[id]
        assert (overlapping, outside) == ([], []) and count > 5, (id, result[id])
    assert result.get("parallel", [[], []])[:2] == [[], []], result["parallel"]
    assert result["images"] == [1] * 7 and result["smoothing"] == "0"
    assert result["shared"].startswith("All: model=gpt, data=text")
    assert result["wide"] == [], "nothing but tables and plots is wider than the page"
    assert sorted(result["scales"]) == [
        ["train/loss", False, "linear"],
        ["val/a_long", True, "log"],
        ["val/loss", False, "linear"],
    ]
    assert result["columns"][:3] == ["id", "state", "best val/loss ↑"]


BANDS = """
const traces = () =>
  element("curves").data.map(trace => [trace.fill ?? trace.mode, trace.name ?? ""]);
const result = { shown: !element("bands-part").hidden };
element("metric").value = "train/loss"; element("metric").dispatchEvent(new Event("input"));
result.bands = traces();
element("bands").checked = false; element("bands").dispatchEvent(new Event("input"));
result.lines = traces().length;
document.body.dataset.result = JSON.stringify(result);
"""


@needs_browser
def test_bands_in_a_browser(runs, sweep, outputs, tmp_path):
    runs("report", "--over", "optimizer.lr")
    result = in_browser(outputs / "report.html", tmp_path, BANDS, has_webgl=False)
    assert result["shown"]
    assert [kind for kind, _ in result["bands"]] == ["lines", "tonexty", "lines"] * 2
    names = [name for _, name in result["bands"] if name]
    assert names[0] == "note=fine (n=3)" and names[1].endswith("&lt;img src=x> (n=1)")
    assert result["lines"] == 8
