"""The checkpoints of a run as they are on the disk, with what is wrong with them."""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.checkpoint.find_checkpoint import checkpoint_path
from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest, UnsupportedCheckpoint, issues
from launcher.checkpoint.store import (
    ABANDONED,
    BEST,
    CORRUPT,
    LATEST,
    REPLACED,
    TEMPORARY,
    CheckpointStore,
)
from launcher.process.byte_sizes import folder_size, size
from launcher.process.plural import plural
from launcher.process.text_table import TextTable
from launcher.runs.format import duration
from launcher.runs.stored_run import StoredRun

HEADINGS = ("run", "step", "size", "age", "state")

UNFINISHED = "unfinished"
UNSUPPORTED = "of another version"
ASIDE = {
    CORRUPT: "set aside",
    ABANDONED: "abandoned",
    TEMPORARY: UNFINISHED,
    REPLACED: UNFINISHED,
}
"""States of folders that are not among the checkpoints, by the beginning of their names."""


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint, a folder that was set aside or left over, or a link that leads nowhere.

    Args:
        run: the run.
        path: its folder.
        marks: `latest`, `best`, or a state of `ASIDE`.
        problem: what is wrong, or "".
        manifest: None if it cannot be read.
        size: bytes of its files.
        written: when, in seconds since the epoch; None for a link.
        is_aside: it is not among the checkpoints that a run resumes from.
    """

    run: StoredRun
    path: Path
    marks: tuple[str, ...] = ()
    problem: str = ""
    manifest: Manifest | None = None
    size: int = 0
    written: float | None = None
    is_aside: bool = False

    @property
    def is_unfinished(self) -> bool:
        return self.marks == (UNFINISHED,)

    @property
    def is_damaged(self) -> bool:
        return bool(self.problem) and not self.is_aside and UNSUPPORTED not in self.marks

    @property
    def step(self) -> int | None:
        if self.manifest is not None:
            return self.manifest.step
        match = re.search(r"step-(\d+)", self.path.name)
        return None if match is None else int(match[1])


def verify_checkpoints(
    run: StoredRun, reads: bool = False, at: str | None = None
) -> Iterator[FoundCheckpoint]:
    """Compare each checkpoint of a run with its manifest: every byte (`reads`), or the sizes.

    Without `at`, folders that were set aside or left over are among them.
    """
    root = run.folder.checkpoints
    if root.is_symlink() and not root.exists():
        yield _dangling(run, root)
        return
    store = CheckpointStore(root)
    try:
        steps = store.steps_with_broken()
    except OSError as error:
        yield FoundCheckpoint(run, root, problem=f"cannot be read ({error.strerror})")
        return
    named = {name: checkpoint_path(root, name) for name in (LATEST, BEST)}
    for path in [checkpoint_path(root, at)] if at else map(store.path, steps):
        if path is not None:
            marks = tuple(name for name in named if named[name] == path)
            yield from _verify(run, path, marks, reads)
    if at is None and root.is_dir():
        yield from _others(run, root, reads)


def _others(run: StoredRun, root: Path, reads: bool) -> Iterator[FoundCheckpoint]:
    for entry in sorted(root.iterdir()):
        if entry.name in (LATEST, BEST) and entry.is_symlink() and not entry.exists():
            yield _dangling(run, entry)
        elif not entry.is_symlink():
            for prefix, state in ASIDE.items():
                if entry.name.startswith(prefix):
                    yield from _verify(run, entry, (state,), reads, is_aside=True)


def _verify(
    run: StoredRun, path: Path, marks: tuple[str, ...], reads: bool, is_aside: bool = False
) -> Iterator[FoundCheckpoint]:
    manifest = None
    problem = ""
    if marks != (UNFINISHED,):
        try:
            manifest = Manifest.read(path)
            problem = "; ".join(issues(path, manifest, reads))
        except UnsupportedCheckpoint as error:
            marks = (UNSUPPORTED, *marks)
            problem = error.problem
        except (CorruptCheckpoint, OSError) as error:
            problem = str(error).removeprefix(f"{path.name}: ")
    # A running process may have just deleted the checkpoint.
    with suppress(OSError):
        written = path.stat().st_mtime
        num_bytes = folder_size(path)
        yield FoundCheckpoint(run, path, marks, problem, manifest, num_bytes, written, is_aside)


def _dangling(run: StoredRun, link: Path) -> FoundCheckpoint:
    problem = f"points to {os.readlink(link)}, which does not exist"
    return FoundCheckpoint(run, link, problem=problem)


# ------------------------------------------------------------------------------------------ table
def checkpoint_table(checkpoints: Sequence[FoundCheckpoint], reads: bool) -> TextTable:
    count = sum(not each.is_aside and each.written is not None for each in checkpoints)
    num_runs = len({each.run.path for each in checkpoints})
    total = f"{plural(count, 'checkpoint')} of {plural(num_runs, 'run')}"
    damaged = sum(checkpoint.is_damaged for checkpoint in checkpoints)
    if damaged:
        total = f"{damaged} damaged of {total}"
    rows = [cells(checkpoint, reads) for checkpoint in checkpoints]
    rows.append(["total", "", size(sum(each.size for each in checkpoints)), "", total])
    return TextTable(HEADINGS, rows, right=frozenset((1, 2, 3)), folds=True)


def cells(checkpoint: FoundCheckpoint, reads: bool = False) -> list[str]:
    step = "-" if checkpoint.step is None else str(checkpoint.step)
    if checkpoint.written is None:
        state = f"damaged, {checkpoint.path.name} leads nowhere"
        return [checkpoint.run.label, step, "-", "-", state]
    marks = list(checkpoint.marks)
    if reads and not checkpoint.problem and not checkpoint.is_unfinished:
        marks.insert(0, "whole")
    if checkpoint.is_damaged:
        marks.insert(0, "damaged")
    return [
        checkpoint.run.label,
        step,
        size(checkpoint.size),
        duration(time.time() - checkpoint.written),
        ", ".join(marks) or "-",
    ]
