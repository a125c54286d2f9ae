"""Show a run: record, overrides, attempts, checkpoints, newest metrics; or write a note."""

import argparse
import json
import re
import time
from collections.abc import Iterator
from typing import Any

from launcher.checkpoint.chain import BrokenChain, read_chain
from launcher.config.identity.course import describe_courses
from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser
from launcher.process.plural import plural
from launcher.process.text_table import TextTable, headings_that_fit, terminal_width
from launcher.rundir.record_format import AttemptData, RecordData
from launcher.rundir.training_history import describe_changes
from launcher.rundir.user_note import UserNote
from launcher.runs.act.repeat_command import select_runs
from launcher.runs.find_runs import RUN_HELP
from launcher.runs.format import best, duration, local_time, number, seconds_of
from launcher.runs.found_checkpoints import cells, verify_checkpoints
from launcher.runs.look.compare import commit
from launcher.runs.look.differences import is_group
from launcher.runs.look.listing import summary
from launcher.runs.look.phase_times import describe_starts, describe_time, time_of_run
from launcher.runs.slurm_jobs import ask_queue
from launcher.runs.stored_run import StoredRun, StoredRuns

LEFT_OUT = ("pid", "host", "ranks", "job", "took", "started")
"""Columns of attempts that a narrow terminal does without, in this order."""


def add_arguments(parser: Parser) -> None:
    parser.argument("runs", "RUN", f"{RUN_HELP}; or a filter: model=mlp", nargs="+")
    parser.flag("--json", "everything known of each run, with its checkpoints, as JSON")
    add_note_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    runs = select_runs(arguments.runs, arguments.outputs)
    if arguments.note is not None or arguments.label or arguments.unlabel:
        write_notes(runs, arguments)
        return 0
    ask_queue(runs)
    if arguments.json:
        print(json.dumps([as_json(run) for run in runs], indent=2))
        return 0
    width = terminal_width()
    for index, table in enumerate(table for run in runs for table in tables(run, width)):
        if index:
            print()
        table.print()
    return 0


def as_json(run: StoredRun) -> dict[str, Any]:
    """Return what `list --json` has of a run, and its checkpoints, each verified."""
    checkpoints = [
        {
            "step": found.step,
            "path": str(found.path),
            "size": found.size,
            "state": cells(found)[-1],
        }
        for found in verify_checkpoints(run)
    ]
    return {**summary(run, {}), "checkpoints": checkpoints}


def tables(run: StoredRun, width: int | None = None) -> Iterator[TextTable]:
    lines = [(heading, value) for heading, value in facts(run).items() if value]
    bold = {(row, 0): "bold" for row in range(len(lines))}
    yield TextTable((), lines, styles=bold, folds=True)
    if run.attempts:
        attempts = [attempt_cells(attempt, run) for attempt in run.attempts]
        # Few attempts have a signal or a reason, and a terminal may be narrow.
        shown = [name for name in attempts[0] if any(cells[name] for cells in attempts)]
        columns = {name: [str(cells[name] or "-") for cells in attempts] for name in shown}
        headings = headings_that_fit(columns, LEFT_OUT, width, {"reason": 20})
        rows = [[*row] for row in zip(*(columns[name] for name in headings), strict=True)]
        yield TextTable(headings, rows, folds=True, title="attempts")
    if checkpoints := [*verify_checkpoints(run)]:
        rows = [cells(checkpoint)[1:] for checkpoint in checkpoints]
        right = frozenset((0, 1, 2))
        headings = ["step", "size", "age", "state"]
        yield TextTable(headings, rows, right, folds=True, title="checkpoints")
    if run.metrics:
        rows = [
            [k, number(value), f"step {step}"] for k, (value, step) in sorted(run.metrics.items())
        ]
        yield TextTable((), rows, frozenset((1,)), folds=True, title="metrics")


def facts(run: StoredRun) -> dict[str, str]:
    record = run.record
    count = record.get("world_size")
    ranks = "" if count is None else plural(count, "rank")
    return {
        "run": run.label,
        "folder": str(run.folder.path),
        "state": run.state,
        "user": " ".join(run.users),
        "note": run.written.text,
        "labels": " ".join(run.written.labels),
        "step": run.progress,
        "forked from": fork_source(record),
        "shares": shares(record),
        "trained with": describe_courses(run.record, run.identity_exclude),
        "changed": describe_changes(run.attempts),
        "lost by a resume": lost_by_a_resume(record),
        "loss": number(record.get("loss")),
        "best": best(record),
        "time": describe_time(time_of_run(run, time.time())) if run.attempts else "",
        "last start": describe_starts(run.attempts[-1:]),
        "strategy": ", ".join(filter(None, (record.get("strategy") or "-", ranks))),
        "commit": commit(run),
        "digest": newest_digest(run),
        "versions": ", ".join(
            f"{name} {version}" for name, version in (record.get("versions") or {}).items()
        ),
        "choices": " ".join(
            f"{k}={v}" for k, v in sorted(run.choices.items()) if is_group(k) and v != "null"
        ),
        "overrides": " ".join(run.overrides) or "none",
    }


def fork_source(record: RecordData) -> str:
    """Return the run and the step that a fork started from, or "" for other runs."""
    source = record.get("forked_from")
    return f"{source['name']}/{source['id']} at step {source['step']}" if source else ""


def shares(record: RecordData) -> str:
    """Return the steps that another run has trained, or "" without such steps."""
    source = record.get("shared")
    return f"steps 0 to {source['step']} with {source['run']}" if source else ""


def lost_by_a_resume(record: RecordData) -> str:
    """Return what changes while the run trains and is not stored, or "" if nothing was found."""
    unstored = record.get("unstored")
    return ", ".join(unstored["lost"]) if unstored else ""


def newest_digest(run: StoredRun) -> str:
    """Return the digest of the numbers of its newest checkpoint, or "" if none is stored.

    `chain.jsonl` and a claim have the same one. It is equal exactly if weights, optimizer, counters
    and position of the data are.
    """
    try:
        links = read_chain(run.folder.chain_path)
    except FileNotFoundError:
        return ""
    except BrokenChain as error:
        return str(error)
    except OSError as error:
        return f"{run.folder.chain_path.name} cannot be read ({error.strerror})"
    return f"{links[-1].numbers} at step {links[-1].step}" if links else ""


def attempt_cells(attempt: AttemptData, run: StoredRun) -> dict[str, object]:
    """Return an attempt as a row. Without an outcome it is running, or was killed (`stale`)."""
    first, last = seconds_of(attempt.get("started")), seconds_of(attempt.get("ended"))
    outcome: str | None = attempt.get("outcome")
    end_step = attempt.get("end_step")
    if outcome is None:
        last = time.time() if run.state == "running" else run.updated
        outcome, end_step = run.state, run.record.get("step")
    code = attempt.get("exit_code")
    return {
        "#": attempt.get("number"),
        "started": local_time(attempt.get("started")),
        "took": None if first is None or last is None else duration(last - first),
        "host": attempt.get("host"),
        "pid": attempt.get("pid"),
        "user": attempt.get("user") if len(run.users) > 1 else None,
        "job": attempt.get("slurm_job_id"),
        "ranks": attempt.get("world_size"),
        "steps": f"{attempt.get('start_step')} to {end_step}",
        "outcome": outcome,
        "signal": attempt.get("signal"),
        "exit": None if code is None else str(code),
        "reason": attempt.get("reason"),
    }


def add_note_arguments(parser: Parser) -> None:
    parser.argument("--note", "TEXT", "write a note about it; '' removes it")
    parser.add_argument("--label", action="append", default=[], help="add a label; may be repeated")
    parser.argument("--unlabel", "LABEL", "remove a label", action="append", default=[])


def write_notes(runs: StoredRuns, arguments: argparse.Namespace) -> None:
    for label in (*arguments.label, *arguments.unlabel):
        if re.fullmatch(r"[\w.-]+", label) is None:
            raise ConfigError(f"--label '{label}': should be letters, digits and . _ -.")
    for run in runs:
        text = run.written.text if arguments.note is None else arguments.note
        labels = dict.fromkeys((*run.written.labels, *arguments.label))
        new = UserNote(text, tuple(label for label in labels if label not in arguments.unlabel))
        if new != run.written:
            with run.folder.explain_write_errors():
                new.write(run.folder.path)
        marks = "".join(f" [{label}]" for label in new.labels)
        print(f"{run.label}:{marks} {new.text or '-'}")
