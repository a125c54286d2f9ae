"""Show how much space runs take, by run or by group."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from launcher.rundir.folder import STEP
from launcher.rundir.space import folder_size, owner, size
from launcher.runs.bar import bar
from launcher.runs.filters import FILTER_HELP, select
from launcher.runs.find import ask_queue, find_runs
from launcher.runs.stored_run import StoredRun
from launcher.runs.table import Table

NONE = "-"


@dataclass
class Usage:
    """Bytes of runs, and the number of their checkpoints."""

    runs: int = 0
    count: int = 0
    checkpoints: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        return self.checkpoints + self.other

    def __add__(self, more: "Usage") -> "Usage":
        return Usage(
            self.runs + more.runs,
            self.count + more.count,
            self.checkpoints + more.checkpoints,
            self.other + more.other,
        )

    def as_json(self) -> dict[str, int]:
        return {
            "checkpoints": self.count,
            "checkpoint_bytes": self.checkpoints,
            "bytes": self.total,
        }


def owner_of(run: StoredRun) -> str:
    return owner(run.path)


def sweep_of(run: StoredRun) -> str:
    """Return the sweep that made the run, or `-` for a single run."""
    name = run.settings.get("run.sweep")
    return NONE if name is None else str(name)


GROUPS = {
    "sweep": sweep_of,
    "state": lambda run: run.state,
    "name": lambda run: run.name,
    "user": owner_of,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="FILTER", help=FILTER_HELP)
    parser.add_argument(
        "--by", choices=GROUPS, help="a line for each sweep, state, name or user, not for each run"
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON, in bytes")


def run(arguments: argparse.Namespace) -> int:
    runs = find_runs(arguments.outputs)
    ask_queue(runs)
    runs = select(runs, arguments.words)
    usages = measured(runs)
    if arguments.by is None:
        rows = sorted(zip(runs, usages, strict=True), key=lambda row: -row[1].total)
        lines: list[tuple[dict[str, str], Usage]] = [
            ({"name": run.name, "id": run.id, "state": run.state}, usage) for run, usage in rows
        ]
    else:
        groups: dict[str, Usage] = {}
        for stored, usage in zip(runs, usages, strict=True):
            group = GROUPS[arguments.by](stored)
            groups[group] = groups.get(group, Usage()) + usage
        rows_by_size = sorted(groups.items(), key=lambda row: -row[1].total)
        lines = [({arguments.by: group}, usage) for group, usage in rows_by_size]
    if arguments.json:
        print(
            json.dumps(
                [{**names, "runs": usage.runs, **usage.as_json()} for names, usage in lines],
                indent=2,
            )
        )
    elif lines:
        table(lines, by_group=arguments.by is not None).print()
    else:
        print(f"There are no runs in {arguments.outputs}.", file=sys.stderr)
    return 0


def measured(runs: Sequence[StoredRun]) -> list[Usage]:
    """The usage of each run.

    In a terminal a bar shows how far it is: thousands of runs take a while.
    """
    usages = []
    with bar(len(runs)) as shown:
        for run in runs:
            usages.append(usage(run))
            shown.advance(run.label)
    return usages


def usage(run: StoredRun) -> Usage:
    """Measure the usage of one run.

    Checkpoints at another place (`hooks.checkpointing.path`) are included.
    """
    root = run.folder.checkpoints
    checkpoints = folder_size(root)
    count = (
        sum(STEP.match(entry.name) is not None for entry in root.iterdir()) if root.is_dir() else 0
    )
    return Usage(
        1, count, checkpoints, folder_size(run.path) - (0 if root.is_symlink() else checkpoints)
    )


def table(lines: Sequence[tuple[dict[str, str], Usage]], by_group: bool) -> Table:
    headings = [
        *lines[0][0],
        *(["runs"] if by_group else []),
        "checkpoints",
        "size",
        "other",
        "total",
    ]
    rows = []
    total = sum((usage for _, usage in lines), Usage())
    for names, usage in [*lines, (dict.fromkeys(lines[0][0], ""), total)]:
        cells: list[Any] = [*names.values(), *([usage.runs] if by_group else []), usage.count]
        cells += [size(usage.checkpoints), size(usage.other), size(usage.total)]
        rows.append(list(map(str, cells)))
    rows[-1][0] = "total"
    named = len(lines[0][0])
    return Table(headings, rows, right=frozenset(range(named, len(headings))), shrinks=range(named))
