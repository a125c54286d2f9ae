"""List the checkpoints of a run: step, size, age, strategy, and the links to it.

The links are `latest` and `best`.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from rich.text import Text

from launcher.checkpoint.manifest import NAME, CorruptCheckpoint, Manifest
from launcher.checkpoint.store import BEST, CORRUPT, LATEST, CheckpointStore
from launcher.rundir.space import size
from launcher.runs.find import RUN_HELP, find_run
from launcher.runs.format import duration
from launcher.runs.page import StdoutConsole, grid
from launcher.runs.stored_run import StoredRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def run(arguments: argparse.Namespace) -> int:
    rows = checkpoints(find_run(arguments.run, arguments.outputs))
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    right = ("size", "age", "ranks", "samples")
    table = grid("folder", "size", "age", "ranks", "strategy", "samples", "note", right=right)
    for row in rows:
        age = duration(time.time() - row["time"])
        cells = [
            row["folder"],
            size(row["bytes"]),
            age,
            row["ranks"],
            row["strategy"],
            row["samples"],
            row["note"],
        ]
        table.add_row(*(Text("-" if cell is None else str(cell)) for cell in cells))
    if rows:
        StdoutConsole().print(table)
    return 0


def checkpoints(run: StoredRun) -> list[dict[str, Any]]:
    """Return a row for each checkpoint and for each folder that was set aside.

    Only manifests are read.
    """
    store = CheckpointStore(run.folder.checkpoints)
    aside = sorted(store.root.glob(f"{CORRUPT}*"))
    linked = {name: store.linked(name) for name in (LATEST, BEST)}
    rows = []
    for folder in [*map(store.path, store.steps_with_broken()), *aside]:
        row = _row(folder)
        names = [
            name for name, step in linked.items() if step is not None and folder == store.path(step)
        ]
        rows.append({**row, "note": ", ".join([*names, *([row["note"]] if row["note"] else [])])})
    return rows


def _row(folder: Path) -> dict[str, Any]:
    row: dict[str, object] = {
        "folder": folder.name,
        "path": str(folder),
        "time": folder.stat().st_mtime,
    }
    try:
        manifest = Manifest.read(folder)
        row["time"] = (folder / NAME).stat().st_mtime
    except (CorruptCheckpoint, OSError):
        unknown = dict.fromkeys(("step", "ranks", "strategy", "samples"))
        return {**row, **unknown, "bytes": 0, "note": "without a manifest"}
    row |= {"step": manifest.step, "bytes": sum(entry.size for entry in manifest.files)}
    row |= {
        "ranks": manifest.world_size,
        "strategy": manifest.strategy,
        "samples": manifest.samples,
    }
    return {**row, "note": "set aside" if folder.name.startswith(CORRUPT) else ""}
