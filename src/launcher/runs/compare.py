"""Compare runs: what differs in configuration, code and results."""

import argparse
import json
import math
from collections.abc import Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from launcher.config.difference import columns, diff, is_within
from launcher.errors import ConfigError
from launcher.rundir.history import as_number
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.runs.differences import counts, is_group, not_counted
from launcher.runs.find import RUN_HELP, find_run
from launcher.runs.format import number, progress
from launcher.runs.page import StdoutConsole, grid
from launcher.runs.stored_run import StoredRun

PLACE_KEYS = ("run.id", "run.name", "run.dir", "paths", "hydra")
"""Keys that say where a run is stored, which differ between all runs."""
Rows = dict[str, list[str | None]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="+", help=RUN_HELP)
    parser.add_argument(
        "--why",
        action="store_true",
        help="why they are different runs: only the keys in which their identities differ",
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def run(arguments: argparse.Namespace) -> int:
    runs = [find_run(word, arguments.outputs) for word in arguments.runs]
    if len({run.folder.path.resolve() for run in runs}) < 2:
        raise ConfigError("give at least two different runs: compare RUN RUN.")
    if arguments.why:
        show_identities(runs, arguments.json)
        return 0
    sections = {
        "configuration": configuration(runs, counted=True),
        "configuration that cannot change the numbers": configuration(runs, counted=False),
        "code": code(runs),
        "machine": machine(runs),
        "results": results(runs),
    }
    first = first_difference(runs)
    if arguments.json:
        print(
            json.dumps(
                {"runs": [run.label for run in runs], **sections, "metrics": first}, indent=2
            )
        )
        return 0
    page = StdoutConsole()
    for heading, rows in sections.items():
        page.print(
            table(heading, rows, [run.label for run in runs])
            if rows
            else Text(f"{heading}: the same")
        )
        page.print()
    for line in (*first, *diff_command(runs)):
        page.print(line, markup=False, soft_wrap=True)
    return 0


def show_identities(runs: Sequence[StoredRun], as_json: bool) -> None:
    """Print the keys in which the identities of runs differ, so why they are different runs."""
    identities = [identity_of(run) for run in runs]
    rows = columns(diff(*identities))
    labels = [run.label for run in runs]
    if as_json:
        print(json.dumps({"runs": labels, "identity": rows}, indent=2))
    elif rows:
        StdoutConsole().print(table("identity", rows, labels))
    else:
        print(
            "Their identities are equal: all but one were named by run.id=..., or their folders"
            " were copied."
        )


def identity_of(run: StoredRun) -> dict[str, object]:
    identity = RunOnDisk.read(run.path).record.get("identity")
    if identity is None:
        raise ConfigError(
            f"'{run.label}': run.json has no identity, so it is not known what the run is named by."
        )
    return identity


def configuration(runs: Sequence[StoredRun], counted: bool) -> Rows:
    """Return the differing options and keys that can change a run's numbers, or the others."""
    ignored = not_counted(runs)
    chosen = [
        {group: option for group, option in run.choices.items() if is_group(group)} for run in runs
    ]
    differing = diff(*chosen) | diff(*(run.settings for run in runs))
    return columns(
        {
            key: values
            for key, values in differing.items()
            if counts(key, ignored) == counted and not is_within(key, PLACE_KEYS)
        }
    )


def code(runs: Sequence[StoredRun]) -> Rows:
    described = [
        {
            "commit": commit(run),
            **{name: str(version) for name, version in (run.record.get("versions") or {}).items()},
            "strategy": str(run.record.get("strategy")),
            "ranks": str(run.record.get("world_size")),
        }
        for run in runs
    ]
    return columns(diff(*described))


def machine(runs: Sequence[StoredRun]) -> Rows:
    """Return the machines of each run by attempt, if they differ: they decide the last bits."""
    described = [
        "; then ".join(
            name for name, _ in groupby(a.get("machine") or "unknown" for a in run.attempts)
        )
        for run in runs
    ]
    return {"computed on": [*described]} if len({*described}) > 1 else {}


def commit(run: StoredRun) -> str:
    git = run.record.get("git") or {}
    return (
        f"{str(git.get('commit'))[:12]}{' + changes' if git.get('dirty') else ''}"
        if git
        else "unknown"
    )


def diff_command(runs: Sequence[StoredRun]) -> list[str]:
    """Return the command that shows how the code of two runs differs, if both commits are known."""
    commits = list(
        dict.fromkeys(str((run.record.get("git") or {}).get("commit") or "") for run in runs)
    )
    return (
        [f"The code: git diff {commits[0][:12]} {commits[1][:12]}"]
        if len(commits) == 2 and all(commits)
        else []
    )


def results(runs: Sequence[StoredRun]) -> Rows:
    rows: Rows = {
        "state": [run.state for run in runs],
        "step": [progress(run.record) for run in runs],
        "seconds of training": [f"{run.history.seconds:.1f}" for run in runs],
    }
    for metric in sorted({str(run.best["metric"]) for run in runs if run.best}):
        rows[f"best {metric}"] = [
            f"{number(run.best['value'])} (step {run.best['step']})"
            if run.best.get("metric") == metric
            else None
            for run in runs
        ]
    for metric in sorted({metric for run in runs for metric in run.metrics}):
        rows[metric] = [
            number(run.metrics[metric].value) if metric in run.metrics else None for run in runs
        ]
    return rows


def first_difference(runs: Sequence[StoredRun]) -> list[str]:
    """Find the steps at which loss and validation metrics begin to differ from the first run."""
    first, *others = runs
    return [f"{other.label} against {first.label}: {parting(first, other)}" for other in others]


def parting(first: StoredRun, second: StoredRun) -> str:
    """Find the step at which the logged numbers of two runs begin to differ, compared exactly."""
    left, right = measured(first), measured(second)
    shared = sorted(left.keys() & right.keys(), key=lambda entry: entry[0])
    for entry in shared:
        before, after = left[entry], right[entry]
        if before != after and not (math.isnan(before) and math.isnan(after)):
            step, _, key = entry
            return f"the numbers first differ at step {step}: {key} {after!r} instead of {before!r}"
    if not shared:
        return "they have logged no numbers that can be compared"
    steps = len({step for step, _, _ in shared})
    return (
        f"loss and validation metrics are bitwise identical at all {steps} steps that both logged"
    )


def measured(run: StoredRun) -> dict[tuple[int, int | None, str], float]:
    """Return training loss and validation metrics by (step, previous step, name).

    The training loss is a mean since the previous line, so it is comparable only if both runs
    logged that line. For validation metrics the previous step is None.
    """
    values: dict[tuple[int, int | None, str], float] = {}
    before = 0
    for row in run.history.rows:
        step = row.get("step")
        if not isinstance(step, int):
            continue
        for key, written in row.items():
            value = as_number(written)
            if value is not None and (key == "train/loss" or key.startswith("val/")):
                values[step, before if key == "train/loss" else None, key] = value
        before = step if "train/loss" in row else before
    return values


def table(heading: str, rows: Rows, labels: Sequence[str]) -> Table:
    result = grid(heading, *labels)
    for key, values in rows.items():
        result.add_row(Text(key), *(Text("-" if value is None else value) for value in values))
    return result
