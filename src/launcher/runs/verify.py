"""Compare every checkpoint of runs with its manifest, and list each missing or damaged file."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest, faults
from launcher.checkpoint.store import BEST, CORRUPT, LATEST, REPLACED, TEMPORARY, CheckpointStore
from launcher.rundir.space import size
from launcher.runs.find import RUN_HELP, find_run
from launcher.runs.page import Page
from launcher.runs.stored_run import StoredRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="+", help=RUN_HELP)
    parser.add_argument("--quick", action="store_true", help="compare file sizes only")


def run(arguments: argparse.Namespace) -> int:
    """1 if a checkpoint is damaged or a link is dangling. Folders that were set aside or left over are only listed."""
    runs = [find_run(name, arguments.outputs) for name in arguments.runs]
    page, bad = Page(), False
    for stored in runs:
        for path, finding, is_bad in checked(stored, not arguments.quick):
            page.print(f"{path}  {finding}", markup=False, soft_wrap=True)
            bad |= is_bad
    return int(bad)


def checked(run: StoredRun, hashes: bool) -> Iterator[tuple[Path, str, bool]]:
    """Each folder or link, a finding about it, and whether that is bad."""
    store = CheckpointStore(run.folder.checkpoints)
    if not store.root.is_dir() or not any(store.root.iterdir()):
        yield store.root, "no checkpoint", False
        return
    for step in store.steps_with_broken():
        folder = store.path(step)
        problems, num_bytes = problems_of(folder, hashes)
        if folder.is_dir():  # otherwise a running process has just pruned it
            yield folder, "; ".join(problems) if problems else f"ok, {size(num_bytes)}", bool(problems)
    for name in (LATEST, BEST):
        link = store.root / name
        if link.is_symlink() and not link.exists():
            yield link, f"points to {os.readlink(link)}, which does not exist", True
    for entry in sorted(store.root.iterdir()):
        if entry.name.startswith(CORRUPT):
            yield (
                entry,
                f"set aside: {'; '.join(problems_of(entry, hashes)[0]) or 'it verifies now'}",
                False,
            )
        elif entry.name.startswith((TEMPORARY, REPLACED)):
            yield entry, "being written, or left by a process that was killed; the next start removes it", False


def problems_of(folder: Path, hashes: bool) -> tuple[list[str], int]:
    """Return the problems of a checkpoint, and the number of bytes that its files should have."""
    try:
        manifest = Manifest.read(folder)
        return faults(folder, manifest, hashes), sum(entry.size for entry in manifest.files)
    except (CorruptCheckpoint, OSError) as error:
        return [str(error).removeprefix(f"{folder.name}: ")], 0
