"""Delete checkpoints of runs that have ended, except those that something needs."""

import argparse
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from pathlib import Path

from launcher.checkpoint.manifest import CorruptCheckpoint, UnsupportedCheckpoint, is_small, verify
from launcher.checkpoint.store import ABANDONED, BEST, CORRUPT, LATEST, CheckpointStore
from launcher.config.messages import hint
from launcher.errors import ConfigError
from launcher.process.byte_sizes import size
from launcher.process.plural import plural
from launcher.process.text_table import TextTable
from launcher.process.users import other_owner
from launcher.rundir.folder import checkpoint_of, find_folders, run_name
from launcher.rundir.lock import RunLock
from launcher.rundir.lock_holder import is_held
from launcher.runs.format import duration
from launcher.runs.found_checkpoints import (
    HEADINGS,
    FoundCheckpoint,
    cells,
    verify_checkpoints,
)
from launcher.runs.stored_run import StoredRun, StoredRuns

AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
LINK_NAMES = (BEST, LATEST)


class Untouched(Exception):
    """The reason why nothing of a run is deleted."""


def seconds_of_age(text: str) -> float:
    match = AGE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"--older={text}: should be a number and a unit, s, m, h, d or w; e.g. --older=30d."
        )
    return float(match[1]) * SECONDS[match[2]]


def parse_keep(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in LINK_NAMES and not name.removeprefix("step-").isdecimal():
            raise ConfigError(
                f"--keep={text}: should be best, latest or steps{hint(name, LINK_NAMES)}"
            )
    return names


def delete(runs: StoredRuns, everything: StoredRuns, arguments: argparse.Namespace) -> int:
    """Print what would be deleted, or delete it; forks of `runs` are among `everything`."""
    sources = starting_points(everything, arguments.outputs)
    rows: list[list[str]] = []
    deleted: list[FoundCheckpoint] = []
    reasons = Counter[str]()
    failed = False
    for run, seen in [(run, run.updated) for run in runs]:
        try:
            protect(run, arguments.older or 0.0, sources)
            found, paths = delete_of_run(run, seen, arguments.keep or LINK_NAMES, arguments.yes)
            for each in found:
                is_deleted = each.path in paths
                rows.append([*cells(each), "delete" if is_deleted else "keep"])
                if is_deleted:
                    deleted.append(each)
        except Untouched as reason:
            reasons[str(reason)] += 1
        except (ConfigError, OSError) as error:
            print(f"{run.label}: {cause_of(error)}", file=sys.stderr)
            failed = True
    if rows:
        TextTable((*HEADINGS, "plan"), rows, right=frozenset((1, 2, 3)), folds=True).print()
    print(total(deleted, arguments.yes))
    for text, count in reasons.most_common():
        print(f"Not touched: {plural(count, 'run')}, {text}.")
    return int(failed)


def cause_of(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be deleted ({error.strerror})"
    return str(error)


def delete_of_run(
    run: StoredRun, seen: float | None, keep: Sequence[str], is_final: bool
) -> tuple[list[FoundCheckpoint], set[Path]]:
    """Return the checkpoints of a run and the paths to delete, which `is_final` deletes.

    `seen` is the time of the run's record when it was decided that the run may be cleaned.
    """
    store = CheckpointStore(run.folder.checkpoints, names=run.names)
    with RunLock(run.folder) if is_final else nullcontext():
        if run.updated != seen:
            raise ConfigError("it has changed since it was looked at")
        checkpoints = [*verify_checkpoints(run)]
        left = {each.path for each in checkpoints if each.is_unfinished}
        if is_final:
            store.recover()
        steps = [step for step in store.steps_with_broken() if store.is_own(store.path(step))]
        remaining = steps_to_keep(store, steps, keep, is_final)
        folders = [store.path(step) for step in steps if step not in remaining]
        # A checkpoint that was set aside as damaged and verifies again is the run's newest.
        aside = [path for path in store.root.glob(f"{CORRUPT}*") if not _verifies(path, is_final)]
        aside += store.root.glob(f"{ABANDONED}*")
        folders += [path for path in aside if store.is_own(path)]
        if not folders and not left:
            raise Untouched("it has nothing to delete")
        if is_final:
            # A kill leaves no checkpoint that is visible and not whole.
            hidden = [store.hide(folder) for folder in folders]
            store.relink()
            for folder in hidden:
                shutil.rmtree(folder)
    return checkpoints, {*folders, *left}


def steps_to_keep(
    store: CheckpointStore, steps: Sequence[int], keep: Sequence[str], reads: bool
) -> set[int]:
    """Return the steps to keep, with at least one that verifies."""
    best = store.best()
    named = {LATEST: store.steps()[-1:], BEST: [] if best is None else [best]}
    chosen: set[int] = set()
    for name in keep:
        chosen.update(named[name] if name in named else [int(name.removeprefix("step-"))])
    chosen &= {*steps}
    for step in sorted(steps, key=lambda step: (step in chosen, step), reverse=True):
        if _verifies(store.path(step), reads):
            return chosen | {step}
    raise Untouched("none of its checkpoints verifies" if steps else "it has no checkpoint")


def _verifies(folder: Path, reads: bool) -> bool:
    """Return whether a checkpoint is whole; `reads` reads its tensors too."""
    try:
        verify(folder, True if reads else is_small)
    except (CorruptCheckpoint, UnsupportedCheckpoint):
        return False
    return True


def total(deleted: Sequence[FoundCheckpoint], is_done: bool) -> str:
    checkpoints = [each for each in deleted if not each.is_unfinished]
    runs = plural(len({each.run.path for each in checkpoints}), "run")
    what = f"{plural(len(checkpoints), 'checkpoint')} of {runs}"
    what += f": {size(sum(each.size for each in deleted))}"
    if is_done:
        return f"Deleted {what}."
    return f"Would delete {what}; --yes deletes them."


# -------------------------------------------------------------------------------- what is protected
def starting_points(runs: StoredRuns, outputs: Path) -> set[str]:
    """Return the folders of runs from which others start: as forks, or by `run.init_from`."""
    labels: set[str] = set()
    folders: set[Path] = set()
    for run in runs:
        source = run.record.get("forked_from")
        if source:
            labels.add(f"{source['name']}/{source['id']}")
        fork = run.settings.get("run.fork_from")
        if fork is not None:
            labels.add(str(fork).rpartition("/")[0])
            checkpoint = checkpoint_of(outputs, str(fork))
            folders.update([] if checkpoint is None else [checkpoint.parent.parent])
        start = run.settings.get("run.init_from")
        if start is not None:
            folders.update(_runs_of(str(start), outputs))
    folders.update(
        run.folder.path for run in runs if {run.id, run.label, run_name(run.folder.path)} & labels
    )
    return {os.path.realpath(folder) for folder in folders}


def _runs_of(start: str, outputs: Path) -> list[Path]:
    """Return the folders of runs that `run.init_from` may name: by id, folder, or a path in it."""
    path = Path(os.path.expanduser(start)).absolute()
    above = [folder for folder in (path, *path.parents) if (folder / "run.json").is_file()]
    return above[:1] or ([] if "/" in start else find_folders(outputs, start))


def protect(run: StoredRun, older: float, sources: Collection[str]) -> None:
    """Raise `Untouched` unless a run may be cleaned. `older` is in seconds."""
    places = [path for path in (run.path, run.folder.checkpoints) if os.path.exists(path)]
    others = [owner for path in places if (owner := other_owner(path)) is not None]
    is_uncertain = run.had_job and not run.queue_known and run.state != "completed"
    reasons = {
        "a process is on it": is_held(run.folder),
        "its run.json cannot be read": not run.record,
        "it is queued": run.job is not None or run.state == "queued",
        "it may be queued, and SLURM does not answer": is_uncertain,
        f"it belongs to {others[0] if others else ''}": bool(others),
        "it has a tag (run.tag)": run.settings.get("run.tag") is not None,
        "another run starts from it": os.path.realpath(run.path) in sources,
        "it is a copy, and its checkpoints are the original's": (
            run.folder.checkpoints.is_symlink() and run.is_copied
        ),
        "its checkpoints are a link to a place that your signature does not name": (
            run.has_foreign_checkpoints
        ),
        f"it is younger than {duration(older)}": (
            run.updated is None or time.time() - run.updated < older
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise Untouched(reason)
