"""Every checkpoint of a run, compared with its manifest: what is wrong, file by file."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest, faults
from launcher.checkpoint.store import BEST, CORRUPT, LATEST, REPLACED, TEMPORARY, CheckpointStore
from launcher.runs.find import Run, find_run
from launcher.runs.format import Page, size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="an id, the beginning of one, a name, name/id, or a folder"
    )
    parser.add_argument("--quick", action="store_true", help="compare sizes alone, read no content")


def run(arguments: argparse.Namespace) -> int:
    """1 if a checkpoint is not whole or a link leads nowhere; what was set aside or left over is told and no more."""
    runs = [find_run(name, arguments.outputs) for name in arguments.runs]
    page, bad = Page(), False
    for one in runs:
        for place, said, is_bad in checked(one, not arguments.quick):
            page.print(f"{place}  {said}", markup=False, soft_wrap=True)
            bad |= is_bad
    return int(bad)


def checked(run: Run, hashes: bool) -> Iterator[tuple[Path, str, bool]]:
    """A folder or link, what there is to say of it, and whether that is bad."""
    store = CheckpointStore(run.folder.checkpoints)
    if not store.root.is_dir() or not any(store.root.iterdir()):
        yield store.root, "no checkpoint", False
        return
    for step in store.steps_with_broken():
        folder = store.path(step)
        problems, held = problems_of(folder, hashes)
        if folder.is_dir():  # else a running process has pruned it meanwhile
            yield folder, "; ".join(problems) if problems else f"ok, {size(held)}", bool(problems)
    for name in (LATEST, BEST):
        link = store.root / name
        if link.is_symlink() and not link.exists():
            yield link, f"leads to {os.readlink(link)}, which is not there", True
    for entry in sorted(store.root.iterdir()):
        if entry.name.startswith(CORRUPT):
            yield (
                entry,
                f"set aside: {'; '.join(problems_of(entry, hashes)[0]) or 'nothing is wrong with it now'}",
                False,
            )
        elif entry.name.startswith((TEMPORARY, REPLACED)):
            yield entry, "being written, or left by a process that was killed; the next start tidies up", False


def problems_of(folder: Path, hashes: bool) -> tuple[list[str], int]:
    """What is wrong with a checkpoint, and the bytes that it should hold."""
    try:
        manifest = Manifest.read(folder)
        return faults(folder, manifest, hashes), sum(entry.size for entry in manifest.files)
    except (CorruptCheckpoint, OSError) as error:
        return [str(error).removeprefix(f"{folder.name}: ")], 0
