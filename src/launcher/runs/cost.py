"""Show what runs cost: where their time went, device hours, money."""

import argparse
import json
import sys
import time

from launcher.rundir.files import path_argument
from launcher.runs.du import GROUPS
from launcher.runs.filters import FILTER_HELP, select
from launcher.runs.find import ask_queue, find_runs
from launcher.runs.format import duration
from launcher.runs.spent import PARTS, Prices, Spent, hours, prices_of, spent
from launcher.runs.table import Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="FILTER", help=FILTER_HELP)
    parser.add_argument(
        "--by", choices=GROUPS, help="a line for each sweep, state, name or user, not for each run"
    )
    parser.add_argument(
        "--prices",
        type=path_argument,
        metavar="FILE",
        help=(
            "YAML: prices of an hour by a part of the device's name (default: paths.prices of the"
            " newest run)"
        ),
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON, in seconds")


def run(arguments: argparse.Namespace) -> int:
    prices = None if arguments.prices is None else Prices.read(arguments.prices, "--prices")
    runs = find_runs(arguments.outputs)
    ask_queue(runs)
    runs = select(runs, arguments.words)
    if not runs:
        print(f"There are no runs in {arguments.outputs}.", file=sys.stderr)
        return 0
    prices, now = prices or prices_of(runs), time.time()
    lines: dict[tuple[str, ...], Spent] = {}
    counts: dict[tuple[str, ...], int] = {}
    for stored in runs:
        names = (
            (stored.name, stored.id, stored.state)
            if arguments.by is None
            else (GROUPS[arguments.by](stored),)
        )
        lines[names] = lines.get(names, Spent()) + spent(stored, now)
        counts[names] = counts.get(names, 0) + 1
    headings = ["name", "id", "state"] if arguments.by is None else [arguments.by]
    if arguments.json:
        rows = [
            as_json(dict(zip(headings, names, strict=True)), total, prices)
            for names, total in lines.items()
        ]
        print(json.dumps(rows, indent=2))
    else:
        table(headings, lines, counts, prices).print()
    return 0


def as_json(names: dict[str, str], total: Spent, prices: Prices | None) -> dict[str, object]:
    known = {
        **names,
        **{part: round(total.seconds[part], 3) for part in PARTS},
        "device_hours": total.device_hours,
    }
    known |= {
        "devices": {device: seconds / 3600 for device, seconds in total.devices.items()},
        "ratio": total.ratio,
    }
    return (
        known
        if prices is None
        else {**known, "money": prices.of(total), "currency": prices.currency}
    )


def table(
    headings: list[str],
    lines: dict[tuple[str, ...], Spent],
    counts: dict[tuple[str, ...], int],
    prices: Prices | None,
) -> Table:
    """A line for each run or group, and the sum."""
    is_grouped = len(headings) == 1
    rows = [
        [*names, *cells(total, counts[names] if is_grouped else None, prices)]
        for names, total in lines.items()
    ]
    total = sum(lines.values(), Spent())
    rows.append(
        [
            "total",
            *[""] * (len(headings) - 1),
            *cells(total, sum(counts.values()) if is_grouped else None, prices),
        ]
    )
    columns = [*headings, *(["runs"] if is_grouped else []), *PARTS, "device hours", "effective"]
    columns += [] if prices is None else ["money"]
    right = frozenset(range(len(headings), len(columns)))
    return Table(columns, rows, right=right, shrinks=range(len(headings)))


def cells(total: Spent, count: int | None, prices: Prices | None) -> list[str]:
    known = [] if count is None else [str(count)]
    known += [duration(total.seconds[part]) if total.seconds[part] else "-" for part in PARTS]
    known += [hours(total.device_hours), "-" if total.ratio is None else f"{total.ratio:.0%}"]
    return known if prices is None else [*known, prices.text(prices.of(total))]
