"""Compare every checkpoint of runs with its manifest, and list each missing or damaged file."""

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest, issues
from launcher.checkpoint.store import BEST, CORRUPT, LATEST, REPLACED, TEMPORARY, CheckpointStore
from launcher.rundir.space import size
from launcher.runs.bar import bar
from launcher.runs.find import RUN_HELP
from launcher.runs.page import StdoutConsole
from launcher.runs.rerun import select_runs
from launcher.runs.stored_run import StoredRun
from launcher.runs.table import Table


@dataclass(frozen=True)
class Finding:
    """A folder or link among a run's checkpoints.

    Args:
        path: path of the folder or link.
        text: description of the finding.
        is_bad: whether it is damaged or dangling. Folders that were set aside are not.
        size: bytes of a valid checkpoint. None if it is not a valid checkpoint.
    """

    path: Path
    text: str
    is_bad: bool = False
    size: int | None = None


@dataclass
class Verified:
    """A run, and the findings about its checkpoints."""

    run: StoredRun
    findings: list[Finding] = field(default_factory=list)

    def row(self) -> list[str]:
        """Return the cells of the run in the table.

        They are name, id, valid checkpoints, their size, and the result.
        """
        sizes = [finding.size for finding in self.findings if finding.size is not None]
        bad = sum(finding.is_bad for finding in self.findings)
        result = f"{bad} damaged" if bad else "ok" if sizes else "no checkpoint"
        return [self.run.name, self.run.id, str(len(sizes)), size(sum(sizes)), result]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help = f"{RUN_HELP}; or a filter: state=completed sweep=lr"
    parser.add_argument("runs", metavar="RUN", nargs="+", help=help)
    parser.add_argument("--quick", action="store_true", help="compare file sizes only")
    parser.add_argument("--json", action="store_true", help="a line for each checkpoint")


def run(arguments: argparse.Namespace) -> int:
    """Return 1 if a checkpoint is damaged or a link is dangling.

    Folders that were set aside or left over are only listed.
    """
    runs = select_runs(arguments.runs, arguments.outputs)
    page, verified = StdoutConsole(), []
    with bar(
        sum(len(CheckpointStore(run.folder.checkpoints).steps_with_broken()) for run in runs)
    ) as shown:
        for stored in runs:
            verified.append(Verified(stored))
            for finding in checked(stored, not arguments.quick):
                verified[-1].findings.append(finding)
                shown.advance(f"{stored.label}, {finding.path.name}")
                with shown.hidden():
                    if arguments.json:
                        print(json.dumps(as_dict(stored, finding)), flush=True)
                    elif len(runs) == 1 or finding.is_bad:
                        page.print(f"{finding.path}  {finding.text}", markup=False, soft_wrap=True)
    if len(runs) > 1 and not arguments.json:
        rows = [result.row() for result in verified]
        Table(
            ["name", "id", "valid", "size", "result"], rows, right=frozenset((2, 3)), shrinks=(0,)
        ).print()
    return int(any(finding.is_bad for result in verified for finding in result.findings))


def as_dict(run: StoredRun, finding: Finding) -> dict[str, object]:
    return {
        "run": run.label,
        "path": str(finding.path),
        "finding": finding.text,
        "bad": finding.is_bad,
        "size": finding.size,
    }


def checked(run: StoredRun, hashes: bool) -> Iterator[Finding]:
    """Compare each checkpoint with its manifest, and check the links and the folders left over.

    Args:
        run: whose checkpoints.
        hashes: read the files; otherwise only their sizes are compared.
    """
    store = CheckpointStore(run.folder.checkpoints)
    if store.root.is_symlink() and not store.root.exists():
        yield dangling(store.root)
        return
    if not store.root.is_dir() or not any(store.root.iterdir()):
        yield Finding(store.root, "no checkpoint")
        return
    for step in store.steps_with_broken():
        folder = store.path(step)
        problems, num_bytes = problems_of(folder, hashes)
        # Otherwise a running process has just deleted it.
        if folder.is_dir():
            text = "; ".join(problems) if problems else f"ok, {size(num_bytes)}"
            yield Finding(folder, text, bool(problems), None if problems else num_bytes)
    for name in (LATEST, BEST):
        link = store.root / name
        if link.is_symlink() and not link.exists():
            yield dangling(link)
    for entry in sorted(store.root.iterdir()):
        if entry.name.startswith(CORRUPT):
            yield Finding(
                entry, f"set aside: {'; '.join(problems_of(entry, hashes)[0]) or 'it verifies now'}"
            )
        elif entry.name.startswith((TEMPORARY, REPLACED)):
            yield Finding(
                entry,
                "being written, or left by a process that was killed; the next start removes it",
            )


def dangling(link: Path) -> Finding:
    return Finding(link, f"points to {os.readlink(link)}, which does not exist", True)


def problems_of(folder: Path, hashes: bool) -> tuple[list[str], int]:
    """Return the problems of a checkpoint, and the number of bytes that its files should have."""
    try:
        manifest = Manifest.read(folder)
        return issues(folder, manifest, hashes), sum(entry.size for entry in manifest.files)
    except (CorruptCheckpoint, OSError) as error:
        return [str(error).removeprefix(f"{folder.name}: ")], 0
