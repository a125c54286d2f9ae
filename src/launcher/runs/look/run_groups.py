"""Table, mean and spread of groups of runs that differ in one key only, such as `seed`."""

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.config.identity.difference import columns, diff, is_within
from launcher.errors import ConfigError
from launcher.process.text_table import TextTable, headings_that_fit, terminal_width
from launcher.runs.filters import check_keys, number, sort_by_value, value_of
from launcher.runs.format import number as short
from launcher.runs.look.differences import (
    Row,
    counts,
    differences,
    keys_without_effect,
    override_text,
)
from launcher.runs.stored_run import StoredRun, StoredRuns, count_states

OVER_HELP = "group runs that differ in this key alone: seed"


@dataclass
class Group:
    """Runs that differ only in the key, and the values that distinguish them from other groups."""

    runs: list[StoredRun]
    differs: Row

    @property
    def label(self) -> str:
        return override_text(self.differs)

    @property
    def completed(self) -> list[StoredRun]:
        return [run for run in self.runs if run.state == "completed"]

    def values(self, key: str) -> list[float]:
        """The finite values of a metric or setting in completed runs; others may be at any step."""
        numbers = [number(best_value(run, key)) for run in self.completed]
        return [value for value in numbers if value is not None and math.isfinite(value)]

    def spread(self, key: str) -> str:
        """Format the mean and standard deviation of a metric or setting, and of how many runs.

        The number is left out if all completed runs have a value: they have a column of their own.
        """
        values = self.values(key)
        count = len(self.completed)
        return spread(values) + ("" if len(values) == count else f" ({len(values)} of {count})")


def best_value(run: StoredRun, key: str) -> object:
    """Return the value at the best checkpoint (`best val/loss`), or the newest one."""
    metric = key.removeprefix("best ")
    if metric == key:
        return value_of(run, key)
    if run.best.get("metric") == metric:
        return run.best.get("value")
    return None


def group_runs(runs: StoredRuns, key: str) -> list[Group]:
    """Group the runs by all keys that can change their numbers, except one key and its echoes."""
    if runs and not any(key in run.settings or key in run.choices for run in runs):
        check_keys(runs, [key], "--over=")
        raise ConfigError(f"--over={key}: is not a key of the configuration; e.g. seed.")
    ignored = keys_without_effect(runs)
    differing = columns(diff(*(run.settings for run in runs)))
    values = differing.get(key, [run.choices.get(key) for run in runs])
    repeats = {key} | {
        name for name, column in differing.items() if is_within(name, {key}) or column == values
    }
    counted = [
        column
        for name, column in differing.items()
        if counts(name, ignored) and name not in repeats
    ]
    members: dict[object, list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        members[run.name, tuple(column[index] for column in counted)].append(index)
    rows = differences(runs)
    return [
        Group(
            [runs[index] for index in indices],
            {name: value for name, value in rows[indices[0]].items() if name not in repeats},
        )
        for indices in members.values()
    ]


def mean_of(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def spread(values: Sequence[float]) -> str:
    """Format mean and standard deviation as `0.1832 ± 0.0143`, or `-` without values."""
    mean = short(mean_of(values))
    if len(values) < 2:
        return mean
    return f"{mean} ± {statistics.stdev(values):.2g}"


def print_groups(
    runs: list[StoredRun], columns: Sequence[str], arguments: argparse.Namespace
) -> None:
    """Print a line for each group; `columns` are by default `best`'s metric and the loss."""
    groups = group_runs(runs, arguments.over)
    key = arguments.sort
    columns = columns or [
        *dict.fromkeys(f"best {run.best['metric']}" for run in runs if run.best),
        *(["train/loss"] if any("train/loss" in run.metrics for run in runs) else []),
    ]
    if key is not None:
        check_keys(runs, [key.removeprefix("best ")], "--sort=")
        key = f"best {key}" if f"best {key}" in columns else key
        columns = [*dict.fromkeys((*columns, key))]
        groups = sort_by_value(groups, lambda group: mean_of(group.values(key)), arguments.reverse)
    elif arguments.reverse:
        groups.reverse()
    if arguments.json:
        print(json.dumps([as_json(group, columns) for group in groups], indent=2))
        return
    if not groups:
        print("There are no such runs.", file=sys.stderr)
        return
    group_table(groups, columns, terminal_width()).print()


def group_table(
    groups: Sequence[Group], keys: Sequence[str], width: int | None = None
) -> TextTable:
    """Make a table with one line per group; a narrow one is without the last of `keys`."""
    columns = {
        "name": [group.runs[0].name for group in groups],
        "differs in": [group.label or "-" for group in groups],
        "state": [count_states(group.runs) for group in groups],
        "n": [str(len(group.completed)) for group in groups],
    } | {key: [group.spread(key) for group in groups] for key in keys}
    headings = headings_that_fit(
        columns, [*keys[:0:-1], "state", "name"], width, {"differs in": 26}
    )
    rows = list(zip(*(columns[heading] for heading in headings), strict=True))
    right = frozenset(i for i, name in enumerate(headings) if name == "n" or name in keys)
    return TextTable(headings, rows, right, shrinks=(headings.index("differs in"), 0))


def as_json(group: Group, columns: Sequence[str]) -> dict[str, object]:
    return {
        "name": group.runs[0].name,
        "differs": group.differs,
        "runs": [run.id for run in group.runs],
        "n": len(group.completed),
        "metrics": {column: group.values(column) for column in columns},
        "averaged": {column: len(group.values(column)) for column in columns},
    }
