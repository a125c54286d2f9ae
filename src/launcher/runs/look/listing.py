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
from dataclasses import dataclass
from typing import Any

from launcher.process.argument_parser import Parser
from launcher.process.printable import encodable
from launcher.process.text_table import GAP, TextTable, terminal_width
from launcher.rundir.history import BARS
from launcher.runs.filters import FILTER_HELP, check_keys, no_runs, select, sort, value_of
from launcher.runs.find_runs import ask_queue, find_runs
from launcher.runs.format import duration, number, seconds_of
from launcher.runs.look import run_groups
from launcher.runs.look.differences import Row, differences, override_text
from launcher.runs.stored_run import StoredRun

COLORS = {
    "running": "green",
    "completed": "blue",
    "failed": "red",
    "damaged": "red",
    "stale": "yellow",
    "paused": "cyan",
    "preempted": "yellow",
    "queued": "cyan",
    "cancelled": "magenta",
}
DIFFERENCES = "differs in"
LONG_COLUMNS, CUT_WIDTH = ("reason", DIFFERENCES), 26
"""Columns whose cells are cut to this length before other columns are left out."""


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
        run_groups.show(runs, columns, arguments)
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


@dataclass
class Column:
    """A column; a narrow terminal keeps the smallest `spare` first, and 0 always."""

    heading: str
    cells: list[str]
    spare: int = 0
    is_right: bool = False

    @property
    def width(self) -> int:
        longest = max(map(len, (self.heading, *self.cells)))
        return (min(longest, CUT_WIDTH) if self.heading in LONG_COLUMNS else longest) + GAP


def columns_of(runs: Sequence[StoredRun], now: float, keys: Sequence[str]) -> list[Column]:
    """Return the columns: `keys`, or the usual ones."""
    columns = [
        Column("name", [run.name for run in runs], spare=2),
        Column("id", [run.id for run in runs]),
        Column("state", [run.state for run in runs]),
    ]
    if keys:
        for key in keys:
            cells = [number(value_of(run, key)) for run in runs]
            columns.append(Column(key, cells, is_right=True))
    else:
        columns += usual_columns(runs, now)
    if any(run.failure for run in runs):
        columns.append(Column("reason", [run.failure or "-" for run in runs], spare=11))
    return columns


def usual_columns(runs: Sequence[StoredRun], now: float) -> list[Column]:
    metrics = {str(run.best.get("metric")) for run in runs if run.best}
    heading = f"best {min(metrics)}" if len(metrics) == 1 else "best"
    bests = [best(run, named=len(metrics) > 1) for run in runs]
    columns = [
        Column("step/max", [run.progress for run in runs], 4, is_right=True),
        Column("train/loss", [number(run.record.get("loss")) for run in runs], 5, is_right=True),
        Column("curve", [run.loss_curve for run in runs], 7),
        Column(heading, bests, 3, is_right=True),
        Column("attempts", [str(len(run.attempts)) for run in runs], 9, is_right=True),
        Column("age", [age(run, now) for run in runs], 8, is_right=True),
    ]
    if not encodable(BARS, sys.stdout):
        del columns[2]
    if any(run.job_id for run in runs):
        columns += [
            Column("job", [run.job_id or "-" for run in runs], 6),
            Column("node", [run.node or "-" for run in runs], 10),
            Column("waits for", [run.waits_for or "-" for run in runs], 12),
        ]
    return columns


def best(run: StoredRun, named: bool) -> str:
    value = number(run.best.get("value"))
    return f"{value} ({run.best.get('metric')})" if named and run.best else value


def age(run: StoredRun, now: float) -> str:
    first = seconds_of(run.started) or run.updated
    return "-" if first is None else duration(now - first)


def table(
    runs: list[StoredRun], now: float, width: int | None = None, keys: Sequence[str] = ()
) -> TextTable:
    """Make a table with one line per run, cut to `width`; the columns after `state` are `keys`."""
    columns, rows = columns_of(runs, now, keys), differences(runs)
    if width is not None:
        rows = shorten_keys(rows)
    if any(differing := [*map(override_text, rows)]):
        columns.insert(2, Column(DIFFERENCES, differing, spare=1))
    while width is not None and sum(column.width for column in columns) - GAP > width:
        last = max(columns, key=lambda column: column.spare)
        if not last.spare:
            break
        columns.remove(last)
    headings = [column.heading for column in columns]
    state = headings.index("state")
    cut = [heading for heading in (*LONG_COLUMNS, "name", "id") if heading in headings]
    return TextTable(
        headings,
        list(zip(*(column.cells for column in columns), strict=True)),
        right=frozenset(index for index, column in enumerate(columns) if column.is_right),
        shrinks=[*map(headings.index, cut)],
        styles={(index, state): COLORS.get(run.state, "") for index, run in enumerate(runs)},
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
        **{key: value for key, value in run.record.items() if key not in ("config", "logged")},
        "id": run.id,
        "name": run.name,
        "state": run.state,
        "folder": str(run.folder.path),
        "job_id": run.job_id,
        "node": run.node,
        "job_state": run.job.state if run.job is not None else None,
        "waits_for": run.waits_for,
        "note": run.written.text or None,
        "labels": list(run.written.labels),
        "differs": differs,
        "choices": run.choices,
        "metrics": {key: value for key, (value, _) in run.metrics.items()},
    }
