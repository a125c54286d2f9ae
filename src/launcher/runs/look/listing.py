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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.process.argument_parser import Parser
from launcher.process.printable import encodable
from launcher.process.text_table import GAP, TextTable, terminal_width
from launcher.rundir.history import BARS
from launcher.runs.filters import FILTER_HELP, check_keys, select, sort, value_of
from launcher.runs.find_runs import ask_queue, find_runs, without_garbage_collection
from launcher.runs.format import duration, number, seconds_of
from launcher.runs.look import run_groups
from launcher.runs.look.differences import Row, differences, without_defaults
from launcher.runs.look.expected_times import format_expected
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
DIFFERENCE_HEADING = "differs in"
COMFORTABLE, NARROW, NARROWEST, SPARED_FIRST = 32, 26, 12, 6
"""Widths of `differs in` in characters. Columns with `spare` >= SPARED_FIRST are left out to give
it COMFORTABLE room, the others only to give it NARROW. It is shown if it has NARROWEST."""
REASON = 26
"""Width of `reason`, for which columns with `spare` >= SPARED_FIRST are left out too."""
SHORTEST_ID = 6
"""Characters of an id that are shown at least. Commands take the beginning of an id."""


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


def run(arguments: argparse.Namespace) -> int:
    with without_garbage_collection():
        return run_list(arguments)


def select_runs(arguments: argparse.Namespace) -> tuple[list[StoredRun], list[str]]:
    """Return the runs that match the filter, with their jobs, and the columns."""
    runs = find_runs(arguments.outputs)
    ask_queue(runs)
    runs = select(runs, arguments.words)
    columns = [key.strip() for key in (arguments.columns or "").split(",") if key.strip()]
    check_keys(runs, columns, "--columns=")
    return runs, columns


def run_list(arguments: argparse.Namespace) -> int:
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
        table(runs, time.time(), terminal_width(), columns, arguments.sort or "").print()
    else:
        print(no_runs(arguments), file=sys.stderr)


def no_runs(arguments: argparse.Namespace) -> str:
    suffix = f" that match {' '.join(arguments.words)}" if arguments.words else ""
    return f"There are no runs in {arguments.outputs}{suffix}."


@dataclass
class Column:
    """A column; a narrow terminal keeps the smallest `spare` first, and 0 always."""

    heading: str
    cell: Callable[[StoredRun], str]
    spare: int = 0
    is_right: bool = True


def columns_of(
    runs: Sequence[StoredRun], now: float, keys: Sequence[str], sorted_by: str
) -> list[Column]:
    """Return the columns: `keys`, or the usual ones; a metric that sorts has one too."""
    columns = [
        Column("name", lambda run: run.name, spare=1, is_right=False),
        Column("id", lambda run: run.id, is_right=False),
        Column("state", lambda run: run.state, is_right=False),
        *([key_column(key) for key in keys] or usual_columns(runs, now)),
    ]
    is_shown = sorted_by in {column.heading for column in columns}
    if not is_shown and any(sorted_by in run.metrics for run in runs):
        columns.append(key_column(sorted_by))
    return columns


def usual_columns(runs: Sequence[StoredRun], now: float) -> list[Column]:
    metrics = {str(run.best.get("metric")) for run in runs if run.best}
    (metric,) = metrics if len(metrics) == 1 else (None,)
    columns = [
        Column("step/max", lambda run: run.progress, spare=3),
        Column("train/loss", lambda run: number(run.record.get("loss")), spare=4),
        Column(
            f"best {metric}" if metric else "best",
            lambda run: best(run, named=len(metrics) > 1),
            spare=2,
        ),
        Column("attempts", lambda run: str(len(run.attempts)), spare=8),
        Column("age", lambda run: age(run, now), spare=7),
    ]
    if any(
        format_expected(run, now) for run in runs if run.state in ("running", "queued", "preempted")
    ):
        columns.append(
            Column(
                "expected", lambda run: format_expected(run, now) or "-", spare=7, is_right=False
            )
        )
    if encodable(BARS, sys.stdout):
        columns.insert(2, Column("curve", lambda run: run.loss_curve, spare=6, is_right=False))
    if any(run.job_id for run in runs):
        columns += [
            Column("job", lambda run: run.job_id or "-", spare=5, is_right=False),
            Column("node", lambda run: run.node or "-", spare=9, is_right=False),
            Column("waits for", lambda run: run.waits_for or "-", spare=10, is_right=False),
        ]
    return columns


def key_column(key: str) -> Column:
    return Column(key, lambda run: number(value_of(run, key)))


def best(run: StoredRun, named: bool) -> str:
    value = number(run.best.get("value"))
    return f"{value} ({run.best.get('metric')})" if named and run.best else value


def age(run: StoredRun, now: float) -> str:
    first = seconds_of(run.started) or run.updated
    return "-" if first is None else duration(now - first)


def table(
    runs: list[StoredRun],
    now: float,
    width: int | None = None,
    keys: Sequence[str] = (),
    sorted_by: str = "",
) -> TextTable:
    """Make a table with one line per run, cut to `width`; the columns after `state` are `keys`."""
    columns = columns_of(runs, now, keys, sorted_by)
    cells = [[column.cell(run) for run in runs] for column in columns]
    reasons = [run.failure or "-" for run in runs] if any(run.failure for run in runs) else []
    rows = differences(runs)
    forms = Forms(rows, without_defaults(runs, rows))
    differing = forms.full if any(forms.full) else []
    if width is not None:
        if sum(map(width_of, columns, cells)) + max(map(len, forms.full)) > width:
            cells[1] = short_ids(cells[1])
        kept, room = fitting(columns, cells, width, forms.longest, REASON if reasons else 0)
        columns, cells = [columns[index] for index in kept], [cells[index] for index in kept]
        if room < min(forms.longest, NARROWEST):
            differing = []
        left = room - (min(forms.longest, COMFORTABLE) + GAP if differing else 0)
        reasons = reasons if left >= NARROWEST else []
        differing = differing and forms.that_fits(room - left if reasons else room)
    state = next(index for index, column in enumerate(columns) if column.heading == "state")
    shrinks = [*range(state)]
    if differing:
        columns.insert(state, Column(DIFFERENCE_HEADING, str, is_right=False))
        cells.insert(state, differing)
        shrinks = [state, *shrinks]
        state += 1
    if reasons:
        columns.append(Column("reason", str, is_right=False))
        cells.append(reasons)
        shrinks = [len(columns) - 1, *shrinks]
    return TextTable(
        [column.heading for column in columns],
        list(zip(*cells, strict=True)),
        right=frozenset(index for index, column in enumerate(columns) if column.is_right),
        shrinks=shrinks,
        styles={(index, state): COLORS.get(run.state, "") for index, run in enumerate(runs)},
    )


class Forms:
    """The cells of `differs in`: with keys in full, with short keys, and with the least keys."""

    def __init__(self, rows: Sequence[Row], shown: Sequence[Row]):
        self.full = format_overrides(shown)
        self.short = format_overrides(shorten_keys(shown, keys_of(shown)))
        self.least = format_overrides(shorten_keys(shown, telling(rows)))
        self.longest = max(map(len, (DIFFERENCE_HEADING, *self.least)))

    def that_fits(self, room: int) -> list[str]:
        forms = (self.full, self.short)
        return next((form for form in forms if max(map(len, form)) <= room), self.least)


def format_overrides(rows: Sequence[Row]) -> list[str]:
    return [" ".join(f"{key}={value}" for key, value in row.items()) for row in rows]


def keys_of(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def shorten_keys(rows: Sequence[Row], keys: Sequence[str]) -> list[Row]:
    """Return rows of some keys, shortened to their last part unless two have the same."""
    last = {key: key.rpartition(".")[2] for key in keys}
    count = Counter(last.values())
    names = {key: end if count[end] == 1 else key for key, end in last.items()}
    return [{names[key]: row[key] for key in keys if key in row} for row in rows]


def telling(rows: Sequence[Row]) -> list[str]:
    """Return keys that tell the rows apart as well as all do, each the best one that is left."""
    keys = keys_of(rows)
    chosen: list[str] = []
    groups: list[object] = [None] * len(rows)

    def split(key: str) -> list[tuple[object, str | None]]:
        return [(group, row.get(key)) for group, row in zip(groups, rows, strict=True)]

    while splits := {key: split(key) for key in keys if len({*split(key)}) > len({*groups})}:
        # A key that a row lacks does not tell what the row is.
        best = max(splits, key=lambda key: len({pair for pair in splits[key] if pair[1]}))
        chosen.append(best)
        numbers = {pair: number for number, pair in enumerate(dict.fromkeys(splits[best]))}
        groups = [numbers[pair] for pair in splits[best]]
    return chosen


def short_ids(ids: Sequence[str]) -> list[str]:
    """Cut ids to the shortest length at which they differ."""
    lengths = range(SHORTEST_ID, max(map(len, ids)))
    length = next((n for n in lengths if len({id[:n] for id in ids}) == len({*ids})), None)
    return [id[:length] for id in ids]


def width_of(column: Column, texts: Sequence[str]) -> int:
    return max(map(len, (column.heading, *texts))) + GAP


def fitting(
    columns: list[Column], cells: list[list[str]], width: int, longest: int, more: int
) -> tuple[list[int], int]:
    """Return the columns that fit, and the room for `differs in` and `reason`.

    `longest` is the length of the longest cell of `differs in`, and `reason` needs `more`.
    """
    widths = list(map(width_of, columns, cells))
    kept = [index for index, column in enumerate(columns) if not column.spare]
    room = width - sum(widths[index] for index in kept)
    for index in sorted(range(len(columns)), key=lambda index: columns[index].spare):
        is_spared_first = columns[index].spare >= SPARED_FIRST
        wanted = min(longest, COMFORTABLE) + more if is_spared_first else min(longest, NARROW)
        if index not in kept and room - widths[index] >= wanted:
            kept.append(index)
            room -= widths[index]
    return sorted(kept), room


def summary(run: StoredRun, differs: Row) -> dict[str, Any]:
    """Return the record, state, folder, metrics and differences of a run for `--json`."""
    return {
        **{key: value for key, value in run.record.items() if key != "logged"},
        "id": run.id,
        "name": run.name,
        "state": run.state,
        "folder": str(run.folder.path),
        "job_id": run.job_id,
        "node": run.node,
        "job_state": run.job.state if run.job is not None else None,
        "waits_for": run.waits_for,
        "expected": format_expected(run, time.time()) or None,
        "note": run.written.text or None,
        "labels": list(run.written.labels),
        "differs": differs,
        "choices": run.choices,
        "overrides": run.overrides,
        "metrics": {key: value for key, (value, _) in run.metrics.items()},
    }
