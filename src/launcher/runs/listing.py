"""The runs as a table: in what they differ, their state, step, loss, attempts and age.

A run whose record says `running` while its process is gone, or `queued` while SLURM knows no job of it, is shown as
`stale`: the same command goes on with it. SLURM's queue is asked once, whatever the number of runs.
"""

import argparse
import json
import sys
import time
from typing import Any

from rich.table import Table
from rich.text import Text

from launcher.runs.compare import differences, select
from launcher.runs.find import Run, ask_queue, began, find_runs
from launcher.runs.format import Page, duration, number, progress, seconds_of

COLORS = {
    "running": "green",
    "completed": "blue",
    "failed": "red",
    "damaged": "red",
    "stale": "yellow",
    "preempted": "yellow",
    "queued": "cyan",
    "cancelled": "magenta",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="FILTER",
        help="optimizer.lr=1e-3, model=mlp, state=running, part of a name, or the beginning of an id",
    )
    parser.add_argument("--json", action="store_true", help="all there is to know of each run, as JSON")


def run(arguments: argparse.Namespace) -> int:
    runs = find_runs(arguments.outputs)
    ask_queue(runs)
    runs = select(runs, arguments.words)
    if arguments.json:
        print(
            json.dumps(
                [summary(run, differs) for run, differs in zip(runs, differences(runs), strict=True)],
                indent=2,
            )
        )
        return 0
    if not runs:
        suffix = f" that match {' '.join(arguments.words)}" if arguments.words else ""
        print(f"There are no runs in {arguments.outputs}{suffix}.", file=sys.stderr)
        return 0
    Page().print(table(runs, time.time()))
    return 0


def table(runs: list[Run], now: float) -> Table:
    """One row a run; a column that says nothing of any run is left out."""
    differing = differences(runs)
    found = Table(box=None, pad_edge=False, header_style="bold")
    found.add_column("name", overflow="fold")
    found.add_column("id", no_wrap=True)
    if any(differing):
        found.add_column("differs in", overflow="fold", ratio=1 if sys.stdout.isatty() else None)
    for heading in ("state", "step/max", "loss", "best", "attempts", "age"):
        found.add_column(heading, no_wrap=True, justify="left" if heading == "state" else "right")
    jobs = any(run.job_id for run in runs)
    for heading in ("job", "node", "waits for") if jobs else ():
        found.add_column(heading, no_wrap=True)
    for run, differs in zip(runs, differing, strict=True):
        record = run.record
        cells: list[Text] = [Text(run.name), Text(run.id)]
        if any(differing):
            cells.append(Text(" ".join(f"{key}={value}" for key, value in differs.items())))
        cells += [
            Text(run.state, style=COLORS.get(run.state, "")),
            Text(progress(record)),
            Text(number(record.get("loss"))),
            Text(number((record.get("best") or {}).get("value"))),
            Text(str(len(run.attempts))),
            Text(age(run, now)),
        ]
        if jobs:
            cells += [Text(run.job_id or "-"), Text(run.node or "-"), Text(run.waits_for or "-")]
        found.add_row(*cells)
    return found


def age(run: Run, now: float) -> str:
    """How long ago the first attempt began."""
    first = seconds_of(began(run)) or run.updated
    return "-" if first is None else duration(now - first)


def summary(run: Run, differs: dict[str, str]) -> dict[str, Any]:
    """A run for `--json`: its record, the state as the table has it, its folder, and in what it differs."""
    return {
        **run.record,
        "id": run.id,
        "name": run.name,
        "state": run.state,
        "folder": str(run.folder.path),
        "job_id": run.job_id,
        "node": run.node,
        "job_state": run.job.state if run.job is not None else None,
        "waits_for": run.waits_for,
        "differs": differs,
        "choices": run.choices,
        "overrides": run.overrides,
    }
