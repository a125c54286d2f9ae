"""Show a run: record, overrides, attempts, checkpoints, newest metrics; or write a note."""

import argparse
import time

from rich.table import Table
from rich.text import Text

from launcher.rundir.record_format import AttemptData, RecordData
from launcher.runs.differences import is_group
from launcher.runs.expected import described
from launcher.runs.find import RUN_HELP, ask_queue
from launcher.runs.format import best, duration, local_time, number, progress, seconds_of
from launcher.runs.found_checkpoints import cells, found_checkpoints
from launcher.runs.note import add_note_arguments, write_notes
from launcher.runs.page import StdoutConsole, grid
from launcher.runs.rerun import select_runs
from launcher.runs.spent import spent
from launcher.runs.stored_run import StoredRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help=f"{RUN_HELP}; or a filter: model=mlp"
    )
    add_note_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    runs = select_runs(arguments.runs, arguments.outputs)
    if arguments.note is not None or arguments.label or arguments.unlabel:
        write_notes(runs, arguments)
        return 0
    ask_queue(runs)
    console = StdoutConsole()
    for index, shown in enumerate(runs):
        if index:
            console.print()
        show(shown, console)
    return 0


def show(run: StoredRun, console: StdoutConsole) -> None:
    console.print(facts(run))
    for heading, rows in (
        ("attempts", attempts(run)),
        ("checkpoints", checkpoints(run)),
        ("metrics", metrics(run)),
    ):
        if rows.row_count:
            console.print()
            console.print(Text(heading, style="bold"))
            console.print(rows)


def facts(run: StoredRun) -> Table:
    record = run.record
    git = record.get("git") or {}
    commit = (
        f"{git['commit'][:12]}{', with changes not committed' if git.get('dirty') else ''}"
        if git
        else "-"
    )
    ranks = record.get("world_size")
    lines = {
        "run": f"{run.name}/{run.id}",
        "folder": str(run.folder.path),
        "state": run.state,
        "note": run.written.text,
        "labels": " ".join(run.written.labels),
        "expected": described(run, time.time()),
        "step": progress(record),
        "forked from": forked_from(record),
        "shares": shares(record),
        "loss": number(record.get("loss")),
        "best": best(record),
        "time": spent(run, time.time()).line() if run.attempts else "",
        "strategy": f"{record.get('strategy') or '-'}{f', {ranks} rank(s)' if ranks else ''}",
        "commit": commit,
        "versions": ", ".join(
            f"{name} {version}" for name, version in (record.get("versions") or {}).items()
        ),
        "choices": " ".join(
            f"{k}={v}" for k, v in sorted(run.choices.items()) if is_group(k) and v != "null"
        ),
        "overrides": " ".join(run.overrides) or "none",
    }
    table = grid()
    for heading, value in lines.items():
        if value:
            table.add_row(Text(heading, style="bold"), Text(value))
    return table


def forked_from(record: RecordData) -> str:
    """Return the run and the step that a fork started from, or "" for other runs."""
    source = record.get("forked_from")
    return f"{source['name']}/{source['id']} at step {source['step']}" if source else ""


def shares(record: RecordData) -> str:
    """Return the steps that another run has trained, or "" without such steps."""
    source = record.get("shared")
    return f"steps 0 to {source['step']} with {source['run']}" if source else ""


def attempts(run: StoredRun) -> Table:
    table = grid(
        "#",
        "started",
        "took",
        "host",
        "pid",
        "job",
        "ranks",
        "steps",
        "outcome",
        "signal",
        "exit",
        "reason",
    )
    for attempt in run.attempts:
        cells = attempt_cells(attempt, run)
        table.add_row(*(Text("-" if cell is None else str(cell)) for cell in cells))
    return table


def attempt_cells(attempt: AttemptData, run: StoredRun) -> list[object]:
    """Return an attempt as a row. Without an outcome it is running, or was killed (`stale`)."""
    is_open = attempt.get("outcome") is None
    first, last = seconds_of(attempt.get("started")), seconds_of(attempt.get("ended"))
    if is_open:
        last = time.time() if run.state == "running" else run.updated
    end_step = run.record.get("step") if is_open else attempt.get("end_step")
    return [
        attempt.get("number"),
        local_time(attempt.get("started")),
        None if first is None or last is None else duration(last - first),
        attempt.get("host"),
        attempt.get("pid"),
        attempt.get("slurm_job_id"),
        attempt.get("world_size"),
        f"{attempt.get('start_step')} to {end_step}",
        run.state if is_open else attempt.get("outcome"),
        attempt.get("signal"),
        attempt.get("exit_code"),
        attempt.get("reason"),
    ]


def checkpoints(run: StoredRun) -> Table:
    """List the checkpoints, and the folders that were set aside; their content is not read."""
    table = grid("step", "size", "age", "state", right=("step", "size", "age"))
    for checkpoint in found_checkpoints(run):
        table.add_row(*map(Text, cells(checkpoint)[1:]))
    return table


def metrics(run: StoredRun) -> Table:
    table = grid()
    for key, (value, step) in sorted(run.metrics.items()):
        table.add_row(key, Text(number(value), justify="right"), f"step {step}")
    return table
