"""Compare runs: what differs in configuration, code and results."""

import argparse
import json
import math
from collections.abc import Sequence
from itertools import groupby

from launcher.config.identity.course import courses, describe_course
from launcher.config.identity.difference import columns, diff, is_within
from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser
from launcher.process.text_table import TextTable
from launcher.rundir.history import as_number
from launcher.rundir.training_history import describe_changes
from launcher.runs.find_runs import RUN_HELP, find_run
from launcher.runs.format import number
from launcher.runs.look.differences import counts, is_group, keys_without_effect
from launcher.runs.stored_run import StoredRun, StoredRuns

PLACE_KEYS = ("run.id", "run.name", "run.dir", "paths", "hydra")
"""Keys that say where a run is stored, which differ between all runs."""
Rows = dict[str, list[str | None]]


def add_arguments(parser: Parser) -> None:
    parser.argument("runs", "RUN", RUN_HELP, nargs="+")
    parser.flag(
        "--why", "why they are different runs: only the keys in which their identities differ"
    )
    parser.flag("--json", "the same as JSON")


def run(arguments: argparse.Namespace) -> int:
    runs = [find_run(word, arguments.outputs) for word in arguments.runs]
    if len({run.folder.path.resolve() for run in runs}) < 2:
        raise ConfigError("give at least two different runs: compare RUN RUN.")
    labels = [run.label for run in runs]
    if arguments.why:
        sections = {"identity": columns(diff(*map(identity_of, runs)))}
        lines = []
        sections |= trained_with(runs)
    else:
        sections = all_of(runs)
        lines = first_differences(runs)
    if arguments.json:
        print(json.dumps({"runs": labels, **sections, "metrics": lines}, indent=2))
        return 0
    for index, (heading, rows) in enumerate(sections.items()):
        if index:
            print()
        if rows:
            comparison_table(heading, rows, labels).print()
        else:
            print(f"{heading}: the same")
    if lines:
        print("", *lines, sep="\n")
    return 0


def comparison_table(heading: str, rows: Rows, labels: Sequence[str]) -> TextTable:
    cells = [[key, *("-" if value is None else value for value in rows[key])] for key in rows]
    return TextTable([heading, *labels], cells, folds=True)


def identity_of(run: StoredRun) -> dict[str, object]:
    identity = run.record.get("identity")
    if identity is None:
        raise ConfigError(
            f"'{run.label}': run.json has no identity, so it is not known what the run is named by."
        )
    return identity


def all_of(runs: StoredRuns) -> dict[str, Rows]:
    return {
        "configuration": configuration(runs, counted=True),
        "configuration that cannot change the numbers": configuration(runs, counted=False),
        **trained_with(runs),
        "code": code(runs),
        "machine": machine(runs),
        "results": results(runs),
    }


def trained_with(runs: StoredRuns) -> dict[str, Rows]:
    """Return the values of steps that a run's identity does not tell, if there are any."""
    found = [courses(run.record, run.identity_exclude) for run in runs]
    rows = {
        key: [describe_course(course[key]) if key in course else None for course in found]
        for key in sorted(set().union(*found))
    }
    return {"trained with": rows} if rows else {}


def configuration(runs: StoredRuns, counted: bool) -> Rows:
    """Return the differing options and keys that can change a run's numbers, or the others."""
    ignored = keys_without_effect(runs)
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


def code(runs: StoredRuns) -> Rows:
    described = [
        {
            "commit": commit(run),
            **{name: str(version) for name, version in (run.record.get("versions") or {}).items()},
            "changed": describe_changes(run.attempts) or "-",
            "strategy": str(run.record.get("strategy") or "-"),
            "ranks": str(run.record.get("world_size") or "-"),
        }
        for run in runs
    ]
    return columns(diff(*described))


def commit(run: StoredRun) -> str:
    git = run.record.get("git") or {}
    others = (git.get("repositories") or {}).values()
    commits = [state["commit"] for state in (git, *others) if state and state.get("commit")]
    if not commits:
        return "unknown"
    changes = " + changes" if git.get("dirty") else ""
    return ", ".join(str(each)[:12] for each in commits) + changes


def machine(runs: StoredRuns) -> Rows:
    """Return the machines of each run by attempt, if they differ: they decide the last bits."""
    described = [
        "; then ".join(
            name for name, _ in groupby(a.get("machine") or "unknown" for a in run.attempts)
        )
        for run in runs
    ]
    return {"computed on": [*described]} if len({*described}) > 1 else {}


def results(runs: StoredRuns) -> Rows:
    rows: Rows = {
        "state": [run.state for run in runs],
        "step": [run.progress for run in runs],
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


def first_differences(runs: StoredRuns) -> list[str]:
    """Find the steps at which loss and validation metrics begin to differ from the first run."""
    first, *others = runs
    return [f"{other.label} against {first.label}: {parting(first, other)}" for other in others]


def parting(first: StoredRun, second: StoredRun) -> str:
    """Find the step at which the logged numbers of two runs begin to differ, compared exactly."""
    left = collect_values(first)
    right = collect_values(second)
    shared = sorted(left.keys() & right.keys(), key=lambda entry: (entry[0], entry[2]))
    for entry in shared:
        before = left[entry]
        after = right[entry]
        if before != after and not (math.isnan(before) and math.isnan(after)):
            step, _, key = entry
            return f"the numbers first differ at step {step}: {key} {after!r} instead of {before!r}"
    if not shared:
        return "they have logged no numbers that can be compared"
    steps = len({step for step, _, _ in shared})
    return (
        f"loss and validation metrics are bitwise identical at all {steps} steps that both logged"
    )


def collect_values(run: StoredRun) -> dict[tuple[int, int | None, str], float]:
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
