"""Delete old checkpoints of runs that have ended; without --yes, only print them."""

import argparse
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launcher.checkpoint.manifest import CorruptCheckpoint, UnsupportedCheckpoint, is_small, verify
from launcher.checkpoint.store import (
    ABANDONED,
    BEST,
    CORRUPT,
    LATEST,
    REPLACED,
    TEMPORARY,
    CheckpointStore,
)
from launcher.config.messages import hint
from launcher.errors import ConfigError
from launcher.rundir.folder import checkpoint_of, is_copy, named_folders, run_name
from launcher.rundir.holder import is_held
from launcher.rundir.lock import RunLock
from launcher.rundir.record_format import run_names
from launcher.rundir.space import folder_size, size
from launcher.runs.filters import FILTER_HELP, select
from launcher.runs.find import ask_queue, find_runs
from launcher.runs.format import duration
from launcher.runs.stored_run import StoredRun
from launcher.runs.table import Table

AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
KEPT = f"{BEST},{LATEST}"


@dataclass
class Plan:
    """The deletions from one run."""

    run: StoredRun
    folders: list[Path] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    size: int = 0
    reason: str | None = None
    """Why nothing of the run is deleted."""
    made_for: float | None = None
    """Time of the run's record when the plan was made."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="FILTER", help=FILTER_HELP)
    parser.add_argument(
        "--older",
        type=seconds_of_age,
        default=0.0,
        metavar="AGE",
        help="runs without a change for so long: 30d, 12h, 2w",
    )
    parser.add_argument(
        "--keep",
        type=kept_names,
        default=KEPT,
        metavar="WHICH,...",
        help=f"best, latest, or a step (default: {KEPT})",
    )
    parser.add_argument("--yes", action="store_true", help="delete; without it, nothing is changed")


def seconds_of_age(text: str) -> float:
    """Parse an age such as `7d`.

    Raises:
        ConfigError: it is not a number with a unit.
    """
    match = AGE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"--older={text}: should be a number and a unit, s, m, h, d or w; e.g. --older=30d."
        )
    return float(match[1]) * SECONDS[match[2]]


def kept_names(text: str) -> list[str]:
    """Parse the checkpoints that are kept.

    Raises:
        ConfigError: a name is neither best, latest nor a step.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in (BEST, LATEST) and not name.removeprefix("step-").isdecimal():
            raise ConfigError(
                f"--keep={text}: should be best, latest or steps{hint(name, (BEST, LATEST))}"
            )
    return names


def run(arguments: argparse.Namespace) -> int:
    runs = find_runs(arguments.outputs)
    ask_queue(runs)
    chosen = select(runs, arguments.words)
    if not chosen:
        print(f"There are no runs in {arguments.outputs}.", file=sys.stderr)
        return 0
    sources = starting_points(runs, arguments.outputs)
    plans = [planned(run, arguments.older, arguments.keep, sources) for run in chosen]
    due = [plan for plan in plans if plan.reason is None]
    if arguments.yes:
        done = [delete(plan, arguments.keep) for plan in due]
        freed = sum(plan.size for plan in done)
        print(f"Deleted {counted(done)}: {size(freed)}.")
    else:
        if due:
            table(due).print()
        print(
            f"Would delete {counted(due)}: {size(sum(plan.size for plan in due))}; --yes deletes"
            " them."
        )
    reasons = Counter(plan.reason for plan in plans if plan.reason is not None)
    for reason, count in reasons.most_common():
        print(f"Not touched: {plural(count, 'run')}, {reason}.")
    return 1 if arguments.yes and any(plan.reason is not None for plan in due) else 0


def counted(plans: Iterable[Plan]) -> str:
    """Return the number of folders and of runs: `3 checkpoints of 2 runs`."""
    counts = [len(plan.folders) for plan in plans if plan.folders]
    return f"{plural(sum(counts), 'checkpoint')} of {plural(len(counts), 'run')}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def table(plans: Sequence[Plan]) -> Table:
    rows = [
        [
            plan.run.name,
            plan.run.id,
            plan.run.state,
            age(plan.run),
            str(len(plan.folders)),
            size(plan.size),
            ", ".join(plan.kept),
        ]
        for plan in plans
    ]
    return Table(
        ["name", "id", "state", "age", "delete", "size", "keep"],
        rows,
        right=frozenset((3, 4, 5)),
        shrinks=(6, 0),
    )


def age(run: StoredRun) -> str:
    return "-" if run.updated is None else duration(time.time() - run.updated)


# -------------------------------------------------------------------------------- what is protected
def starting_points(runs: Sequence[StoredRun], outputs: Path) -> set[str]:
    """Return the folders of runs from which others have started or will start.

    They start as forks, or by `run.init_from`.
    """
    named: set[str] = set()
    """The ids, and `<name>/<id>`, of named runs."""
    folders: set[Path] = set()
    for run in runs:
        if source := run.record.get("forked_from"):
            named.add(f"{source['name']}/{source['id']}")
        if (fork := run.settings.get("run.fork_from")) is not None:
            named.add(str(fork).rpartition("/")[0])
            checkpoint = checkpoint_of(outputs, str(fork))
            folders.update([] if checkpoint is None else [checkpoint.parent.parent])
        if (start := run.settings.get("run.init_from")) is not None:
            folders.update(_runs_of(str(start), outputs))
    folders.update(
        run.folder.path for run in runs if {run.id, run.label, run_name(run.folder.path)} & named
    )
    return {os.path.realpath(folder) for folder in folders}


def _runs_of(start: str, outputs: Path) -> list[Path]:
    """Return the folders of the runs that a `run.init_from` may name.

    It names them by an id, a run's folder, or a path in it.
    """
    path = Path(os.path.expanduser(start)).absolute()
    above = [folder for folder in (path, *path.parents) if (folder / "run.json").is_file()]
    return above[:1] or ([] if "/" in start else named_folders(outputs, start))


def protection(run: StoredRun, older: float, sources: set[str]) -> str | None:
    """Explain why a run is not cleaned; return None if it may be cleaned.

    Args:
        run: the run.
        older: seconds for which nothing has changed.
        sources: see `starting_points`.
    """
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


def planned(
    run: StoredRun, older: float, keep: Sequence[str], sources: set[str], hashes: bool = False
) -> Plan:
    """Plan the deletions of a command from a run.

    Args:
        run: the run.
        older: seconds for which nothing has changed.
        keep: best, latest, or steps.
        sources: see `starting_points`.
        hashes: read all tensors to find out which checkpoint verifies. Otherwise compare only their
            sizes.
    """
    made_for, reason = run.updated, protection(run, older, sources)
    plan = (
        Plan(run, reason=reason) if reason is not None else checkpoints_to_delete(run, keep, hashes)
    )
    plan.made_for = made_for
    return plan


def checkpoints_to_delete(run: StoredRun, keep: Sequence[str], hashes: bool) -> Plan:
    """List the checkpoints to delete, see `planned`.

    One checkpoint that verifies is always kept.
    """
    store = CheckpointStore(run.folder.checkpoints, names=run_names(run.folder.path))
    try:
        steps = [step for step in store.steps_with_broken() if store.is_own(store.path(step))]
        named = {LATEST: store.steps()[-1:], BEST: [] if (best := store.best()) is None else [best]}
        asked = [
            step
            for name in keep
            for step in (named[name] if name in named else [int(name.removeprefix("step-"))])
        ]
        kept = {*asked} & {*steps}
        newest_first = sorted(kept, reverse=True) + [
            step for step in reversed(steps) if step not in kept
        ]
        safe = next((step for step in newest_first if _verifies(store.path(step), hashes)), None)
        if safe is None:
            return Plan(
                run, reason="none of its checkpoints verifies" if steps else "it has no checkpoint"
            )
        kept.add(safe)
        folders = [store.path(step) for step in steps if step not in kept]
        # A checkpoint that was set aside as damaged and verifies again is the run's newest.
        aside = [
            path for path in sorted(store.root.glob(f"{CORRUPT}*")) if not _verifies(path, hashes)
        ]
        folders += [
            path
            for path in (*aside, *sorted(store.root.glob(f"{ABANDONED}*")))
            if store.is_own(path)
        ]
        left = [
            path
            for name in (TEMPORARY, REPLACED)
            for path in store.root.glob(f"{name}*")
            if path.is_dir()
        ]
    except OSError as error:
        return Plan(run, reason=f"its checkpoints cannot be read ({error.strerror})")
    num_bytes = sum(map(folder_size, [*folders, *left]))
    if not folders and not left:
        return Plan(run, reason="it has nothing to delete")
    return Plan(run, folders, [store.path(step).name for step in sorted(kept)], num_bytes)


def _verifies(folder: Path, hashes: bool) -> bool:
    try:
        verify(folder, True if hashes else is_small)
    except (CorruptCheckpoint, UnsupportedCheckpoint):
        return False
    return True


# ----------------------------------------------------------------------------------------- deleting
def delete(plan: Plan, keep: Sequence[str]) -> Plan:
    """Delete the planned files of a run, with the run's lock, and print them.

    The plan is made again first, since in the meantime the run may have been resumed, and now
    tensors are read as well.

    Returns:
        The deletions, with a reason if they failed, which is printed.
    """
    run = StoredRun.read(plan.run.path)
    store = CheckpointStore(run.folder.checkpoints)
    try:
        with RunLock(run.folder):
            if run.updated != plan.made_for:
                return _failed(plan, "it has changed since it was looked at")
            left = sum(map(folder_size, store.root.glob(f"{TEMPORARY}*")))
            store.recover()
            now = checkpoints_to_delete(run, keep, hashes=True)
            hidden = [store.hide(folder) for folder in now.folders]
            store.relink()
            for folder in hidden:
                shutil.rmtree(folder)
    except ConfigError as error:
        return _failed(plan, str(error))
    except OSError as error:
        return _failed(plan, f"cannot be deleted ({error.strerror})")
    now.size += left
    then = f"kept {', '.join(now.kept)}" if now.reason is None else now.reason
    print(
        f"{run.label}: deleted {plural(len(now.folders), 'checkpoint')} ({size(now.size)}); {then}",
        flush=True,
    )
    return now


def _failed(plan: Plan, reason: str) -> Plan:
    print(f"{plan.run.label}: {reason}", file=sys.stderr)
    plan.reason = reason
    return Plan(plan.run, reason=reason)
