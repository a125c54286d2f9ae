"""List runs as a table: state, step, loss and its curve, and the keys in which they differ.

A run is listed as `stale` if its record has `running` although its process is gone, or `queued`
although SLURM has no job of it. The same command resumes it. SLURM's queue is read once, for any
number of runs.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from launcher.process.argument_parser import Parser
from launcher.process.printable import encodable
from launcher.process.text_table import TextTable, headings_that_fit, terminal_width
from launcher.rundir.history import BARS
from launcher.runs.filters import FILTER_HELP, check_keys, no_runs, select, sort, value_of
from launcher.runs.find_runs import find_runs
from launcher.runs.format import duration, number, seconds_of
from launcher.runs.look import run_groups
from launcher.runs.look.differences import Row, differences, override_text
from launcher.runs.slurm_jobs import ask_queue
from launcher.runs.stored_run import StoredRun, StoredRuns

COLORS = {
    "running": "green",
    "completed": "blue",
    "failed": "red",
    "damaged": "red",
    "unsupported": "red",
    "stale": "yellow",
    "paused": "cyan",
    "preempted": "yellow",
    "queued": "cyan",
    "cancelled": "magenta",
}
DIFFERENCES = "differs in"
LEFT_OUT = (
    *("waits for", "reason", "node", "attempts", "age", "curve", "job", "train/loss", "step/max"),
    *("best", "user", "name", DIFFERENCES),
)
"""Columns that a narrow terminal does without, in this order."""
TEXTS = ("name", "id", DIFFERENCES, "state", "user", "curve", "job", "node", "waits for", "reason")
"""Columns that are aligned to the left."""
CUT = dict.fromkeys(("reason", DIFFERENCES), 26)
"""Width to which columns are cut before other columns are left out."""
NOT_SHOWN = ("identity", "logged")
"""Keys of run.json that repeat others."""


def add_arguments(parser: Parser) -> None:
    add_selection(parser)
    parser.argument(
        "--over", "KEY", f"{run_groups.OVER_HELP}; n, mean ± standard deviation of each"
    )
    parser.flag("--json", "everything known of each run, as JSON")


def add_selection(parser: Parser) -> None:
    """Add the arguments that choose runs, their order, and columns."""
    parser.argument("words", "FILTER", FILTER_HELP, nargs="*")
    parser.argument("--sort", "KEY", "a column, a configuration key, or a metric: val/loss")
    parser.flag("--reverse", "the largest value first")
    parser.argument(
        "--columns", "KEY,KEY", "these columns after `state`: optimizer.lr,val/loss,train/step_time"
    )


def select_runs(arguments: argparse.Namespace) -> tuple[list[StoredRun], list[str]]:
    """Return the runs that match the filter, with their jobs, and the columns."""
    runs = find_runs(arguments.outputs)
    ask_queue(runs)
    runs = select(runs, arguments.words)
    columns = [key.strip() for key in (arguments.columns or "").split(",") if key.strip()]
    check_keys(runs, columns, "--columns=")
    return runs, columns


def run(arguments: argparse.Namespace) -> int:
    runs, columns = select_runs(arguments)
    if arguments.over is not None:
        run_groups.print_groups(runs, columns, arguments)
        return 0
    if arguments.sort is not None:
        runs = sort(runs, arguments.sort, arguments.reverse)
    elif arguments.reverse:
        runs.reverse()
    if arguments.json:
        pairs = zip(runs, differences(runs), strict=True)
        print(json.dumps([summary(run, differs) for run, differs in pairs], indent=2))
    else:
        print_runs(arguments, runs, columns)
    return 0


def print_runs(
    arguments: argparse.Namespace, runs: list[StoredRun], columns: Sequence[str]
) -> None:
    """Print the table of the runs, or on stderr that there are none."""
    if runs:
        table(runs, time.time(), terminal_width(), columns).print()
    else:
        print(no_runs(arguments.words, arguments.outputs), file=sys.stderr)


def columns_of(
    runs: StoredRuns, now: float, keys: Sequence[str], differing: Sequence[str]
) -> dict[str, list[str]]:
    """Return the cells of each column: `keys`, or the usual ones."""
    columns = {"name": [run.name for run in runs], "id": [run.id for run in runs]}
    if any(differing):
        columns[DIFFERENCES] = [*differing]
    columns["state"] = [run.state for run in runs]
    if len({name for run in runs for name in run.users}) > 1:
        columns["user"] = [" ".join(run.users) or "-" for run in runs]
    values = {key: [number(value_of(run, key)) for run in runs] for key in keys}
    columns |= values or usual_columns(runs, now)
    if any(run.failure for run in runs):
        columns["reason"] = [run.failure or "-" for run in runs]
    return columns


def usual_columns(runs: StoredRuns, now: float) -> dict[str, list[str]]:
    metrics = {str(run.best.get("metric")) for run in runs if run.best}
    heading = f"best {min(metrics)}" if len(metrics) == 1 else "best"
    columns = {
        "step/max": [run.progress for run in runs],
        "train/loss": [number(run.record.get("loss")) for run in runs],
        "curve": [run.loss_curve for run in runs],
        heading: [best(run, named=len(metrics) > 1) for run in runs],
        "attempts": [str(len(run.attempts)) for run in runs],
        "age": [age(run, now) for run in runs],
    }
    if not encodable(BARS, sys.stdout):
        del columns["curve"]
    if any(run.job_id for run in runs):
        columns["job"] = [run.job_id or "-" for run in runs]
        columns["node"] = [run.node or "-" for run in runs]
        columns["waits for"] = [run.waits_for or "-" for run in runs]
    return columns


def best(run: StoredRun, named: bool) -> str:
    value = number(run.best.get("value"))
    if named and run.best:
        return f"{value} ({run.best.get('metric')})"
    return value


def age(run: StoredRun, now: float) -> str:
    first = seconds_of(run.started) or run.updated
    return "-" if first is None else duration(now - first)


def table(
    runs: list[StoredRun], now: float, width: int | None = None, keys: Sequence[str] = ()
) -> TextTable:
    """Make a table with one line per run, cut to `width`; the columns after `state` are `keys`."""
    rows = differences(runs)
    if width is not None:
        rows = shorten_keys(rows)
    columns = columns_of(runs, now, keys, [*map(override_text, rows)])
    left_out = [name for part in LEFT_OUT for name in columns if f"{name} ".startswith(f"{part} ")]
    left_out = [name for name in left_out if name not in keys] + [*reversed(keys)]
    headings = headings_that_fit(columns, left_out, width, CUT)
    return TextTable(
        headings,
        list(zip(*(columns[heading] for heading in headings), strict=True)),
        right=frozenset(index for index, name in enumerate(headings) if name not in TEXTS),
        shrinks=[headings.index(name) for name in (*CUT, "name", "id") if name in headings],
        styles={
            (index, headings.index("state")): COLORS.get(run.state, "")
            for index, run in enumerate(runs)
        },
    )


def shorten_keys(rows: Sequence[Row]) -> list[Row]:
    """Shorten keys to their last part unless two have the same."""
    last = {key: key.rpartition(".")[2] for row in rows for key in row}
    count = Counter(last.values())
    names = {key: end if count[end] == 1 else key for key, end in last.items()}
    return [{names[key]: value for key, value in row.items()} for row in rows]


def summary(run: StoredRun, differs: Row) -> dict[str, Any]:
    """Return the record, state, folder, metrics and differences of a run for `--json`."""
    return {
        **{key: value for key, value in run.record.items() if key not in NOT_SHOWN},
        "id": run.id,
        "name": run.name,
        "state": run.state,
        "folder": str(run.folder.path),
        "job_id": run.job_id,
        "node": run.node,
        "users": list(run.users),
        "job_state": run.job.state if run.job is not None else None,
        "waits_for": run.waits_for,
        "reason": run.failure,
        "note": run.written.text or None,
        "labels": list(run.written.labels),
        "differs": differs,
        "choices": run.choices,
        "metrics": {key: value for key, (value, _) in run.metrics.items()},
    }
