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
from dataclasses import dataclass
from pathlib import Path

from launcher.checkpoint.manifest import CorruptCheckpoint, UnsupportedCheckpoint, is_small, verify
from launcher.checkpoint.store import ABANDONED, BEST, CORRUPT, LATEST, CheckpointStore
from launcher.config.messages import hint
from launcher.errors import ConfigError
from launcher.process.byte_sizes import size
from launcher.process.text_table import TextTable
from launcher.rundir.folder import checkpoint_of, find_folders, is_copy, run_name
from launcher.rundir.holder import is_held
from launcher.rundir.lock import RunLock
from launcher.runs.format import duration, plural
from launcher.runs.found_checkpoints import (
    HEADINGS,
    UNFINISHED,
    FoundCheckpoint,
    cells,
    verify_checkpoints,
)
from launcher.runs.stored_run import StoredRun

AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
LINK_NAMES = (BEST, LATEST)


@dataclass
class Plan:
    """The deletions from one run, or the reason why nothing of it is deleted."""

    run: StoredRun
    reason: str | None = None
    checkpoints: Sequence[FoundCheckpoint] = ()
    paths: Collection[Path] = ()

    @property
    def deleted(self) -> list[FoundCheckpoint]:
        return [each for each in self.checkpoints if each.path in self.paths]

    @property
    def size(self) -> int:
        return sum(each.size for each in self.deleted)

    def rows(self) -> list[list[str]]:
        """Return the cells of all its checkpoints, with what happens to each."""
        plans = ("keep", "delete")
        return [[*cells(each), plans[each.path in self.paths]] for each in self.checkpoints]


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


def delete(
    runs: Sequence[StoredRun], everything: Sequence[StoredRun], arguments: argparse.Namespace
) -> int:
    """Print what would be deleted, or delete it; forks of `runs` are among `everything`."""
    paths = {run.path for run in everything}
    if outside := [run.path for run in runs if run.path not in paths]:
        raise ConfigError(
            f"{outside[0]}: is not in {arguments.outputs}; give the folder of its runs with"
            " --outputs=DIR, since others may start from it."
        )
    sources = starting_points(everything, arguments.outputs)
    plans, failed = [], False
    for run, seen in [(run, run.updated) for run in runs]:
        plan = Plan(run, protection(run, arguments.older or 0.0, sources))
        try:
            if plan.reason is None:
                plan = delete_of_run(run, seen, arguments.keep or LINK_NAMES, arguments.yes)
            plans.append(plan)
        except (ConfigError, OSError) as error:
            print(f"{run.label}: {cause_of(error)}", file=sys.stderr)
            failed = True
    done = [plan for plan in plans if plan.reason is None]
    if rows := [row for plan in done for row in plan.rows()]:
        TextTable((*HEADINGS, "plan"), rows, right=frozenset((1, 2, 3)), folds=True).print()
    print(total(done, arguments.yes))
    for reason, count in Counter(plan.reason for plan in plans if plan.reason).most_common():
        print(f"Not touched: {plural(count, 'run')}, {reason}.")
    return int(failed)


def cause_of(error: Exception) -> str:
    return f"cannot be deleted ({error.strerror})" if isinstance(error, OSError) else str(error)


def delete_of_run(run: StoredRun, seen: float | None, keep: Sequence[str], is_final: bool) -> Plan:
    """Plan the deletions, and carry them out if they are final.

    `seen` is the time of the run's record when it was decided that the run may be cleaned.
    """
    store = CheckpointStore(run.folder.checkpoints, names=run.names)
    with RunLock(run.folder) if is_final else nullcontext():
        if run.updated != seen:
            raise ConfigError("it has changed since it was looked at")
        checkpoints = [*verify_checkpoints(run)]
        left = {each.path for each in checkpoints if each.marks == (UNFINISHED,)}
        if is_final:
            store.recover()
        steps = [step for step in store.steps_with_broken() if store.is_own(store.path(step))]
        remaining = steps_to_keep(store, steps, keep, is_final)
        if not remaining:
            reason = "none of its checkpoints verifies" if steps else "it has no checkpoint"
            return Plan(run, reason)
        folders = [store.path(step) for step in steps if step not in remaining]
        # A checkpoint that was set aside as damaged and verifies again is the run's newest.
        aside = [path for path in store.root.glob(f"{CORRUPT}*") if not _verifies(path, is_final)]
        aside += store.root.glob(f"{ABANDONED}*")
        folders += [path for path in aside if store.is_own(path)]
        if not folders and not left:
            return Plan(run, "it has nothing to delete")
        if is_final:
            # A kill leaves no checkpoint that is visible and not whole.
            hidden = [store.hide(folder) for folder in folders]
            store.relink()
            for folder in hidden:
                shutil.rmtree(folder)
    return Plan(run, None, checkpoints, {*folders, *left})


def steps_to_keep(
    store: CheckpointStore, steps: Sequence[int], keep: Sequence[str], reads: bool
) -> set[int]:
    """Return the steps to keep, with at least one that verifies, or none if no step does."""
    best = store.best()
    named = {LATEST: store.steps()[-1:], BEST: [] if best is None else [best]}
    chosen = {
        step
        for name in keep
        for step in (named[name] if name in named else [int(name.removeprefix("step-"))])
    }
    chosen &= {*steps}
    for step in sorted(steps, key=lambda step: (step in chosen, step), reverse=True):
        if _verifies(store.path(step), reads):
            return chosen | {step}
    return set()


def _verifies(folder: Path, reads: bool) -> bool:
    """Return whether a checkpoint is whole; `reads` reads its tensors too."""
    try:
        verify(folder, True if reads else is_small)
    except (CorruptCheckpoint, UnsupportedCheckpoint):
        return False
    return True


def total(plans: Sequence[Plan], is_done: bool) -> str:
    counts = [sum(each.marks != (UNFINISHED,) for each in plan.deleted) for plan in plans]
    deleted = f"{plural(sum(counts), 'checkpoint')} of {plural(sum(map(bool, counts)), 'run')}"
    deleted += f": {size(sum(plan.size for plan in plans))}"
    return f"Deleted {deleted}." if is_done else f"Would delete {deleted}; --yes deletes them."


# -------------------------------------------------------------------------------- what is protected
def starting_points(runs: Sequence[StoredRun], outputs: Path) -> set[str]:
    """Return the folders of runs from which others start: as forks, or by `run.init_from`."""
    labels: set[str] = set()
    folders: set[Path] = set()
    for run in runs:
        if source := run.record.get("forked_from"):
            labels.add(f"{source['name']}/{source['id']}")
        if (fork := run.settings.get("run.fork_from")) is not None:
            labels.add(str(fork).rpartition("/")[0])
            checkpoint = checkpoint_of(outputs, str(fork))
            folders.update([] if checkpoint is None else [checkpoint.parent.parent])
        if (start := run.settings.get("run.init_from")) is not None:
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


def protection(run: StoredRun, older: float, sources: Collection[str]) -> str | None:
    """Explain why a run is not cleaned; return None if it may be. `older` is in seconds."""
    if is_held(run.folder):
        return "a process is on it"
    if not run.record:
        return "its run.json cannot be read"
    if run.job is not None or run.state == "queued":
        return "it is queued"
    if run.had_job and not run.queue_known and run.state != "completed":
        return "it may be queued, and SLURM does not answer"
    if any(
        os.stat(path).st_uid != os.geteuid()
        for path in (run.path, run.folder.checkpoints)
        if os.path.exists(path)
    ):
        return "it belongs to another user"
    if run.settings.get("run.tag") is not None:
        return "it has a tag (run.tag)"
    if os.path.realpath(run.path) in sources:
        return "another run starts from it"
    if run.folder.checkpoints.is_symlink() and is_copy(run.folder.path, run.record.get("folder")):
        return "it is a copy, and its checkpoints are the original's"
    if run.updated is None or time.time() - run.updated < older:
        return f"it is younger than {duration(older)}"
    return None
