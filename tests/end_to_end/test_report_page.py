"""The report as a browser renders it: all that it can show, in one page."""

import json
from pathlib import Path

from launcher.runs.__main__ import main
from launcher.runs.look.report import page, plotly_source, study_data
from launcher.runs.stored_study import StoredStudy
from support.browser import in_browser, needs_browser
from support.pictures import png
from support.run_maker import run_maker
from support.studies import study_on_disk

EVIL = "</script><script>document.body.dataset.broken = 1</script><img src=x>"


def write_runs(outputs: Path) -> None:
    """Eight runs that differ in 40 keys with long names and values; with notes and media. The
    second was preempted once; the last has an evil name, and failed. The last three have one
    model."""
    make_run = run_maker(outputs)
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
        folder = make_run(
            "gpt",
            f"cccc000{number}",
            config={"model": keys, "run": {"note": "at the start"}, "seed": number},
            best={"metric": "val/loss", "value": 0.5 + number, "step": 10},
            overrides=["trainer.max_steps=10", *(f"model.{k}={v}" for k, v in keys.items())],
            choices={"model": "gpt", "data": "text"},
            rows=rows,
            state="failed" if number == 7 else "completed",
        )
        record = json.loads(folder.record_path.read_text())
        if number == 7:
            record["name"] = EVIL
        if number == 1:
            (attempt,) = record["attempts"]
            record["attempts"] = [{**attempt, "outcome": "preempted", "end_step": 5}, attempt]
        folder.record_path.write_text(json.dumps(record))
        (folder.path / "images/10").mkdir(parents=True)
        (folder.path / "images/10/shown.png").write_bytes(png(1, 1))
        media = [
            {"kind": "image", "key": "shown", "path": "images/10/shown.png"},
            {"kind": "image", "key": "evil", "path": "../../../../etc/hostname.png"},
            {
                "kind": "histogram",
                "key": "weights",
                "counts": [1, 2, number],
                "edges": [0, 1, 2, 3],
            },
        ]
        lines = (json.dumps({"step": 10, "time": 1.0, **row}) + "\n" for row in media)
        (folder.path / "media.jsonl").write_text("".join(lines))


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
for (const isNarrow of [false, true]) {
  if (isNarrow) {
    document.body.style.width = "360px";
    for (const id of ["curves", "parallel", "scatter", "attempts", "histograms"])
      Plotly.purge(element(id));
    drawAll();
  }
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
result.details = text("#details dd");
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
result.axes = data.parameters.filter(p => p.numeric).map(p => [p.key, p.log]);
document.body.dataset.result = JSON.stringify(result);
"""


@needs_browser
def test_the_page_in_a_browser(tmp_path):
    """It is wide, then narrow, then used. The search is one of other runs."""
    outputs, file = tmp_path / "outputs", tmp_path / "outputs" / "report.html"
    write_runs(outputs)
    for words in (["show", "cccc0002", "--label", "paper"], ["report", "--over", "seed"]):
        assert main([*words, "--outputs", str(outputs)]) == 0
    data = json.loads(file.read_text().partition('id="data">')[2].partition("</script>")[0])
    assert data["shared"] == ["data=text", "model=gpt", "trainer.max_steps=10"]
    assert list(data["media"]["keys"]) == ["shown (image)", "weights (histogram)"]
    assert data["media"]["left_out"] == 8, "the images outside the folders of the runs"
    paused = StoredStudy.read(study_on_disk(tmp_path / "paused", paused=True))
    shares = paused.importances()  # paused trials count with their values so far
    assert shares["optimizer.lr"] > 0.7 and abs(sum(shares.values()) - 1) < 1e-6
    study = study_data(StoredStudy.read(study_on_disk(tmp_path / "whole")))
    data["study"] = study["study"]
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
    name, command, commit, unstored, digest = result["details"]
    assert (name, unstored) == ("gpt/cccc0000", "nothing found") and commit
    assert command.startswith("python -m launcher trainer.max_steps=10 'model.a_rather")
    assert digest == "python -m launcher.runs checkpoints --digest gpt/cccc0000"
    assert result["curve"] == ["log", "time (seconds)", 16], "smoothed over faint raw values"
    assert result["bands"] == ["lines", "tonexty", "lines"]
    assert [name[-5:] for name in result["names"]] == [*["(n=1)"] * 5, "(n=2)", "(n=1)"]
    assert result["filtered"] == ["2", "1 of 8 runs", 1]
    assert result["history"] == ["completed:6", "best:7"]
    assert result["importances"] == ["optimizer.lr"] and result["axes"] == [["seed", False]]
