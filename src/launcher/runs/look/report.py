"""Write a report of runs, or of a hyperparameter search, as one HTML file."""

import argparse
import base64
import html
import json
import math
import mimetypes
import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from launcher.config.messages import to_override_text
from launcher.config.schema.metric_direction import Mode, best_index, mode_of, sort_best_first
from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser, path_argument
from launcher.process.files import read_file, replace_file
from launcher.process.plural import plural
from launcher.rundir.history import read_rows
from launcher.rundir.record_format import AttemptData
from launcher.runs.filters import FILTER_HELP, select_some
from launcher.runs.find_runs import find_runs
from launcher.runs.format import seconds_of
from launcher.runs.look.compare import commit
from launcher.runs.look.differences import differences
from launcher.runs.look.phase_times import (
    DEVICES,
    describe_starts,
    describe_time,
    time_of_run,
    total_time,
)
from launcher.runs.look.run_groups import OVER_HELP, group_runs
from launcher.runs.look.series import LOSS, unknown_metric
from launcher.runs.look.show import fork_source, lost_by_a_resume, newest_digest, shares
from launcher.runs.objective import curve_of as trained_curve
from launcher.runs.slurm_jobs import ask_queue
from launcher.runs.stored_run import StoredRun, StoredRuns
from launcher.runs.stored_study import StoredStudy, find_study
from launcher.runs.trials import Trial

MAX_CURVE_POINTS = 600
MIN_CURVE_POINTS = 150
MAX_TOTAL_POINTS = 60_000
"""Limits of a curve, of a curve among many, and of a metric over all runs."""
MAX_METRICS = 8
MAX_RUNS_WITH_MEDIA = 24
MAX_IMAGE_BYTES, MAX_TOTAL_BYTES = 1 << 20, 16 << 20
"""Bytes of an image, and of all images."""
AXES = ("step", "time", "samples")
Data = dict[str, Any]
"""Data of the page, in JSON's types."""
NOT_SHARED = ("run", "paths", "dispatch", "tracker", "job", "hydra", "device")
"""Keys of how a run was started."""


def add_arguments(parser: Parser) -> None:
    parser.argument("words", "FILTER", f"{FILTER_HELP}; or the folder or id of a search", nargs="*")
    parser.argument("--metric", "KEY", "the metric that runs are judged by (default: the best's)")
    parser.argument("--over", "KEY", f"{OVER_HELP}; their curves as bands")
    parser.argument(
        "-o --output",
        "FILE",
        "default: report.html in the folder of runs or search",
        type=path_argument,
    )
    parser.argument("--optuna", "URL", "write the search into a storage of Optuna instead")


def run(arguments: argparse.Namespace) -> int:
    words = arguments.words
    folder = find_study(words[0], arguments.outputs) if len(words) == 1 else None
    if arguments.optuna is not None:
        return export_study(folder, arguments.optuna)
    plotly = plotly_source()
    if folder is not None:
        data = study_data(StoredStudy.read(folder), arguments.metric)
    else:
        everything = find_runs(arguments.outputs)
        ask_queue(everything)
        runs = select_some(everything, words, arguments.outputs)
        groups = [] if arguments.over is None else group_runs(runs, arguments.over)
        data = report_data(runs, arguments.metric)
        data["groups"] = [
            {"label": group.label, "runs": [run.label for run in group.runs]} for group in groups
        ]
    output = arguments.output or (folder or arguments.outputs) / "report.html"
    try:
        replace_file(output, page(data, plotly).encode())
    except OSError as error:
        raise ConfigError(f"--output={output}: cannot be written ({error.strerror}).") from error
    print(output)
    return 0


def export_study(folder: Path | None, url: str) -> int:
    if folder is None:
        raise ConfigError(f"--optuna={url}: needs the folder, name or id of one search.")
    StoredStudy.read(folder).export(url)
    print(f"{url}: study {folder.name}")
    return 0


def plotly_source() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ConfigError("report needs plotly: pip install 'torch-launcher[pictures]'.") from error
    source: str = get_plotlyjs()
    return source


def page(data: Data, plotly: str) -> str:
    """Return the HTML file. `<` is escaped in the data, so no user's text can end the script."""
    names = sorted({run["name"] for run in data["runs"]})
    count = plural(len(data["runs"]), "run")
    title = f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}: {count}"
    if "study" in data:
        title = f"{data['study']['name']}: {plural(len(data['study']['trials']), 'trial')}"
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    template = (resources.files("launcher.runs.look") / "report.html").read_text(encoding="utf-8")
    parts = {"title": html.escape(title), "data": text, "plotly": plotly}
    # In one pass: a text may look like a mark of the template.
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], template)


def report_data(
    runs: StoredRuns,
    metric: str | None = None,
    directions: Mapping[str, Mode] = MappingProxyType({}),
) -> Data:
    """Collect the data of the page in JSON's types; `directions` of metrics override the runs'."""
    judges = Counter(run.judged_by for run in runs if run.judged_by is not None).most_common()
    # A metric has the direction that most runs give it.
    modes = {name: mode for (name, mode), _ in reversed(judges)} | dict(directions)
    logged = dict.fromkeys(name for run in runs for name in run.metrics)
    metrics = choose_metrics(logged, metric, judges[0][0][0] if judges else None)
    modes = {name: mode_of(name, modes.get(name)) for name in metrics}
    max_points = min(MAX_CURVE_POINTS, max(MIN_CURVE_POINTS, MAX_TOTAL_POINTS // len(runs)))
    rows, pages = differences(runs), []
    times = [time_of_run(run, time.time()) for run in runs]
    for run, row, spent in zip(runs, rows, times, strict=True):
        hours = round_value(spent[DEVICES] / 3600)
        pages.append(describe_run(run, row, modes, max_points) | {"device_hours": hours})
        # For ten thousand runs it does not fit into memory.
        del run.history
    mode, bests = modes[metrics[0]], [run_page["best"][metrics[0]] for run_page in pages]
    values = [math.nan if best is None else best["value"] for best in bests]
    order = sort_best_first(range(len(runs)), lambda index: values[index], mode)
    return {
        "metric": metrics[0],
        "mode": mode,
        "shared": common_settings(runs),
        "metrics": metrics,
        "parameters": keys_of(rows),
        "states": dict(Counter(run.state for run in runs).most_common()),
        "spent": describe_time(total_time(times)),
        "starts": describe_starts([attempt for run in runs for attempt in run.attempts]),
        "runs": pages,
        "media": media_of([runs[index] for index in order]),
    }


def common_settings(runs: StoredRuns) -> list[str]:
    """Return what all runs have: model, data, and the overrides that all command lines have."""
    chosen = (
        {f"{group}={run.choices[group]}" for group in ("model", "data") if group in run.choices}
        for run in runs
    )
    typed = (
        {word for word in run.overrides if word.lstrip("+~").partition(".")[0] not in NOT_SHARED}
        for run in runs
    )
    return sorted(set.intersection(*chosen) | set.intersection(*typed))


def study_data(study: StoredStudy, metric: str | None = None) -> Data:
    runs, goal = study.runs, study.goal
    ask_queue(runs)
    logged = {name for run in runs for name in run.history.metrics}
    if not logged:
        raise ConfigError(f"{study.folder}: none of its trials has logged anything yet.")
    judged = goal.objective if goal.objective in logged else None
    data = report_data(runs, metric or judged, {goal.objective: goal.mode})
    rows = {
        trial.stored.label: {key: to_override_text(value) for key, value in trial.params.items()}
        for trial in study.trials
        if trial.stored
    }
    data["parameters"] = keys_of([*rows.values()])
    for run, described_run in zip(runs, data["runs"], strict=True):
        described_run["parameters"] = rows[run.label]
    return data | {
        "study": {
            "name": study.folder.name,
            "objective": goal.objective,
            "trials": [describe_trial(trial, study) for trial in study.trials],
            "best": [round_value(value) for value in study.best_so_far()],
            "common_step": study.common_step,
            "importances": study.importances(),
        }
    }


def describe_trial(trial: Trial, study: StoredStudy) -> Data:
    return {
        "number": trial.number,
        "state": study.state(trial),
        "run": None if trial.stored is None else trial.stored.id,
        "value": round_value(trial.value),
        "params": trial.params,
    }


def choose_metrics(
    logged: Mapping[str, object], metric: str | None, judged: str | None
) -> list[str]:
    """List the metric by which most runs are judged, the training loss, and validation metrics."""
    if metric is not None and metric not in logged:
        raise ConfigError(unknown_metric(metric, logged))
    validation = sorted(name for name in logged if name.startswith("val/"))
    first = metric or judged or ("val/loss" if "val/loss" in logged else LOSS)
    return list(dict.fromkeys([first, LOSS, *validation]))[:MAX_METRICS]


def keys_of(rows: Sequence[dict[str, str]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def describe_run(
    run: StoredRun, row: dict[str, str], modes: Mapping[str, Mode], max_points: int
) -> Data:
    curves = {metric: curve_of(run, metric, max_points) for metric in modes}
    return {
        "id": run.id,
        "name": run.name,
        "forked_from": fork_source(run.record),
        "shares": shares(run.record),
        "command": shlex.join(["python", "-m", "launcher", *run.overrides]),
        "commit": commit(run),
        "unstored": lost_by_a_resume(run.record),
        "digest": newest_digest(run) or f"python -m launcher.runs checkpoints --digest {run.label}",
        "note": run.written.text,
        "labels": list(run.written.labels),
        "state": run.state,
        "step": run.record.get("step", 0),
        "max_steps": run.last_step,
        "started": seconds_of(run.started),
        "parameters": row,
        "best": {metric: best_point(run, metric, mode) for metric, mode in modes.items()},
        "curves": {metric: curve for metric, curve in curves.items() if curve["y"]},
        "restarts": {axis: [*map(round_value, run.history.restarts(axis))] for axis in AXES},
        "attempts": [attempt_of(run, attempt) for attempt in run.attempts],
    }


def curve_of(run: StoredRun, metric: str, max_points: int) -> dict[str, list[float | None]]:
    """Return values against each axis that all lines have: a stream of data has no samples."""
    curves = {axis: run.history.curve(metric, axis) for axis in AXES}
    count = max(len(curve.x) for curve in curves.values())
    whole = {
        axis: curve.thin(max_points) for axis, curve in curves.items() if len(curve.x) == count
    }
    y = next(iter(whole.values())).y
    return {axis: [*map(round_value, curve.x)] for axis, curve in whole.items()} | {
        "y": [*map(round_value, y)]
    }


def best_point(run: StoredRun, metric: str, mode: Mode) -> Data | None:
    """Return the best and last value of a metric and the best's step, or None if none was finite.

    The evaluation before the first step does not count.
    """
    trained = trained_curve(run.history, metric)
    index = best_index(trained.y, mode)
    if index is None:
        return None
    return {
        "value": round_value(trained.y[index]),
        "step": round_value(trained.x[index]),
        "last": round_value(trained.y[-1]),
    }


def attempt_of(run: StoredRun, attempt: AttemptData) -> Data:
    ended = seconds_of(attempt.get("ended")) or run.updated
    return {
        "started": seconds_of(attempt.get("started")),
        "ended": ended,
        "outcome": attempt.get("outcome") or run.state,
        "steps": [attempt.get("start_step"), attempt.get("end_step")],
        "reason": attempt.get("reason") or attempt.get("signal") or "",
        "host": attempt.get("host"),
    }


def round_value(value: float) -> float | None:
    """Round to six significant digits; return None for numbers that JSON does not have."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else float(f"{value:.6g}")


def media_of(runs: StoredRuns) -> Data:
    """Return by key the newest image or histogram of each run, and how many were too large."""
    items: dict[str, list[Data]] = {}
    left_out, total = 0, 0
    for run in runs[:MAX_RUNS_WITH_MEDIA]:
        newest: dict[tuple[str, str], Data] = {}
        for row in read_rows(run.folder.path / "media.jsonl"):
            if row.get("kind") in ("image", "histogram") and isinstance(row.get("key"), str):
                newest[row["kind"], row["key"]] = row
        for (medium, key), row in newest.items():
            content = _histogram(row) if medium == "histogram" else _image(run, row)
            size = len(content.get("image", "")) if content is not None else 0
            if content is None or total + size > MAX_TOTAL_BYTES:
                left_out += 1
                continue
            total += size
            item = {"run": run.label, "step": row.get("step"), **content}
            items.setdefault(f"{key} ({medium})", []).append(item)
    return {"keys": items, "left_out": left_out}


def _histogram(row: dict[str, object]) -> Data | None:
    counts, edges = row.get("counts"), row.get("edges")
    is_one = isinstance(counts, list) and isinstance(edges, list) and len(edges) == len(counts) + 1
    return {"counts": counts, "edges": edges} if is_one else None


def _image(run: StoredRun, row: Data) -> Data | None:
    """Return a data URL, or None if it is gone, too large, outside, or unsafe on a page."""
    path = run.folder.path / str(row.get("path"))
    mime = mimetypes.guess_type(path.name)[0] or ""
    try:
        # `Path.resolve` raises a RuntimeError for a link to itself.
        is_inside = Path(os.path.realpath(path)).is_relative_to(run.folder.path.resolve())
        if not is_inside or mime not in ("image/png", "image/jpeg", "image/webp", "image/gif"):
            return None
        if path.stat().st_size > MAX_IMAGE_BYTES:
            return None
        text = base64.b64encode(read_file(path, follow=True)).decode()
    except OSError:
        return None
    return {"image": f"data:{mime};base64,{text}"}
