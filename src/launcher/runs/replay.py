"""Train from one checkpoint of a run to its next again, and compare every bit."""

import argparse
import errno
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from launcher.checkpoint.changes import stored_sources
from launcher.checkpoint.manifest import CorruptCheckpoint, UnsupportedCheckpoint
from launcher.config.tree import leaves
from launcher.errors import ConfigError
from launcher.rundir.copied import line_differences, lines_of
from launcher.rundir.files import path_argument
from launcher.rundir.folder import RunFolder, checkpoint_steps, step_name
from launcher.rundir.provenance import MACHINE
from launcher.rundir.sources import source_changes
from launcher.runs import replay_job, samples
from launcher.runs.bar import Bar, bar
from launcher.runs.find import RUN_HELP
from launcher.runs.page import StdoutConsole
from launcher.runs.replay_copy import Copier, loaded
from launcher.runs.rerun import select_runs
from launcher.runs.stored_run import StoredRun
from launcher.runs.table import Table

GIT = "git."
"""Beginning of the circumstances that explain nothing alone: the imported sources are compared."""
SHOWN = 3
TAIL_BYTES = 16_384


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help=f"{RUN_HELP}; or a filter: state=completed sweep=lr;"
        " dispatch=slurm dispatch.partition=gpu: train as jobs",
    )
    parser.add_argument(
        "--segments", type=int, default=3, metavar="N", help="replay N random ones (default: 3)"
    )
    parser.add_argument(
        "--from", dest="start", type=int, metavar="STEP", help="a checkpoint's step, or 0"
    )
    parser.add_argument(
        "--to", dest="end", type=int, metavar="STEP", help="a later checkpoint's step"
    )
    parser.add_argument(
        "--scratch",
        type=path_argument,
        metavar="DIR",
        help="where to train (default: the temporary folder; with dispatch=slurm the runs' folder)",
    )
    parser.add_argument("--json", action="store_true", help="a line for each segment")
    samples.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replay the segments of a run, and print the result of each.

    Returns:
        0 if all segments are bitwise identical (with --samples, if each sample was used once per
        epoch), else 1.
    """
    if arguments.segments < 1:
        raise ConfigError(f"--segments={arguments.segments}: must be at least 1.")
    words = [word for word in arguments.runs if replay_job.is_of_dispatch(word)]
    arguments.dispatch = replay_job.dispatch_of(words)
    names = [word for word in arguments.runs if word not in words]
    if not names:
        raise ConfigError("replay: which run? Give a name, the beginning of an id, or a filter.")
    runs = select_runs(names, arguments.outputs)
    if arguments.samples or arguments.step is not None:
        return max(samples.run(stored, arguments) for stored in runs)
    if len(runs) == 1:
        results = list(replays(runs[0], arguments))
        return int(not all(result.is_equal for result in results))
    rows = []
    for number, stored in enumerate(runs, 1):
        try:
            results, error = list(replays(stored, arguments, f" ({number} of {len(runs)})")), ""
        # The other runs are replayed.
        except ConfigError as failed:
            results, error = [], "; ".join(failed.messages)
            if arguments.json:
                print(json.dumps({"run": stored.label, "equal": False, "error": error}), flush=True)
        equal = sum(result.is_equal for result in results)
        result = (
            f"not replayed: {error}" if error else "equal" if equal == len(results) else "different"
        )
        rows.append([stored.name, stored.id, f"{equal}/{len(results)}", result])
    if not arguments.json:
        headings = ["name", "id", "equal", "result"]
        Table(headings, rows, right=frozenset((2,)), shrinks=(3, 0)).print()
    return int(any(row[-1] != "equal" for row in rows))


def replays(run: StoredRun, arguments: argparse.Namespace, of: str = "") -> Iterator["Replay"]:
    """Replay the chosen segments of a run, and report each.

    Args:
        run: what is replayed.
        arguments: of the command line.
        of: which of several runs it is, for the progress bar.
    """
    for start, end in segments_of(run, arguments):
        with bar(end - start, f"{run.label}{of}, steps {start} to {end}") as shown:

            def watch(folder: Path, shown: Bar = shown, start: int = start) -> Callable[[], None]:
                return lambda: shown.reach(max(0, last_step(RunFolder(folder)) - start))

            options = arguments.scratch, watch, arguments.trust, arguments.dispatch
            result = replay(run, start, end, *options)
        report(result, arguments.json)
        yield result


def segments_of(run: StoredRun, arguments: argparse.Namespace) -> list[tuple[int, int]]:
    """Return the pairs of checkpoints to train between, from the command line or random neighbours.

    Raises:
        ConfigError: the run has no such checkpoint.
    """
    steps = checkpoint_steps(run.folder.checkpoints)
    if not steps:
        raise ConfigError(f"{without_checkpoint(run)}, so there is nothing to replay.")
    known = [0, *steps]
    for option, step, options in (
        ("--from", arguments.start, known[:-1]),
        ("--to", arguments.end, steps),
    ):
        if step is not None and step not in options:
            raise ConfigError(
                f"{option}={step}: {run.label} has no such checkpoint; it has"
                f" {_listed(options)}. Train it with hooks.checkpointing.keep_previous=N to keep"
                " more."
            )
    if arguments.start is None and arguments.end is None:
        pairs = list(pairwise(known))
        return sorted(random.sample(pairs, min(arguments.segments, len(pairs))))
    end = (
        next(step for step in steps if step > arguments.start)
        if arguments.end is None
        else arguments.end
    )
    start = (
        max(step for step in known if step < end) if arguments.start is None else arguments.start
    )
    if start >= end:
        raise ConfigError(f"--from={start}: must be before --to={end}.")
    return [(start, end)]


def without_checkpoint(run: StoredRun) -> str:
    """Return the beginning of a message for a run without a checkpoint.

    The run's checkpoints may also be on another machine.
    """
    root = run.folder.checkpoints
    if root.is_symlink() and not root.exists():
        target = f"which points to {os.readlink(root)}, a folder that this machine does not have"
        return f"{run.label}: has no checkpoint in {root}, {target}"
    return f"{run.label}: has no checkpoint in {root}"


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps[:12])) + (
        f" and {len(steps) - 12} more" if len(steps) > 12 else ""
    )


@dataclass
class Replay:
    """Result of a segment: the numbers, tensors and states that differ, if any."""

    run: str
    start: int
    end: int
    tensors: int = 0
    lines: int = 0
    metrics: list[str] = field(default_factory=list)
    """Differences in metrics.jsonl, by step."""
    states: list[str] = field(default_factory=list)
    """Tensors and states of the last checkpoint that differ."""
    circumstances: list[str] = field(default_factory=list)
    """Other differences: code, versions, processor."""
    causes: list[str] = field(default_factory=list)
    """Lines about the cause from further trainings, unless a circumstance explains it."""

    @property
    def is_equal(self) -> bool:
        return not self.metrics and not self.states


def replay(
    run: StoredRun,
    start: int,
    end: int,
    scratch: Path | None = None,
    watch: Callable[[Path], object] | None = None,
    trust: bool = False,
    dispatch: Mapping[str, object] | None = None,
) -> Replay:
    """Train a copy of the run from one step to another, and compare it with the run's data.

    Args:
        run: the run.
        start: the step of the checkpoint at which the copy begins.
        end: the step at which it ends.
        scratch: folder in which the copy is trained. Default None: the temporary folder.
        watch: gets the copy's folder, and returns a function that is called until the training has
            ended.
        trust: whatever code the checkpoint's configuration names may run.
        dispatch: settings of SLURM's dispatch. Default None: train on this machine.
    Raises:
        ConfigError: a checkpoint is gone or damaged, its configuration names code that is not
            allowed, the scratch folder is full, or the training failed.
    """
    try:
        with Copier.of(run, end, scratch, trust, dispatch) as copier:
            copy = copier.train("outputs", start, end, watch)
            result = compared(run, copy, start, end)
            if not result.is_equal and all(line.startswith(GIT) for line in result.circumstances):
                result.causes = causes(copier, copy, start, end, result)
            return result
    except (CorruptCheckpoint, UnsupportedCheckpoint) as error:
        raise ConfigError(f"{run.label}: {error}") from error
    except OSError as error:
        raise ConfigError(
            f"{run.label}: steps {start} to {end} cannot be replayed ({reason_of(error)}); use"
            " --scratch=DIR for another folder."
        ) from error


def causes(copier: Copier, copy: RunFolder, start: int, end: int, found: Replay) -> list[str]:
    """Train twice more to find out why a replay differs; see `replay_causes`."""
    print(
        f"{found.run}, steps {start} to {end}: different; training twice more to find the cause.",
        file=sys.stderr,
        flush=True,
    )
    from launcher.runs.replay_causes import Causes  # late: torch

    try:
        return list(Causes(copier, copy, start, end).report(found.metrics, found.states))
    except ConfigError as error:
        return [f"not found: {' '.join(error.messages)}"]
    except OSError as error:
        return [f"not found: {reason_of(error)}."]


def reason_of(error: OSError) -> str:
    """Return the reason of an error in a few words; copying a folder raises a list of them."""
    if isinstance(error, shutil.Error):
        if any(f"[Errno {errno.ENOSPC}]" in str(reason) for *_, reason in error.args[0]):
            return os.strerror(errno.ENOSPC)
        return str(error.args[0][0][-1])
    return str(error.strerror or error)


def compared(run: StoredRun, copy: RunFolder, start: int, end: int) -> Replay:
    """Compare the checkpoint at `end` and the lines of metrics.jsonl since `start`."""
    # Torch is imported late.
    from launcher.checkpoint.difference import differences
    from launcher.checkpoint.stored import StoredCheckpoint

    name = step_name(end)
    found = differences(run.folder.checkpoints / name, copy.checkpoints / name)
    result = Replay(
        run.label, start, end, tensors=len(StoredCheckpoint(copy.checkpoints / name).names())
    )
    result.states = [str(difference) for difference in found]
    before, after = lines_of(run.folder, start, end), lines_of(copy, start, end)
    result.lines = len(before)
    result.metrics = line_differences(before, after, ("the run", "the replay"))
    if not result.is_equal:
        result.circumstances = circumstances(run.folder.checkpoints / name, copy.checkpoints / name)
    return result


def circumstances(before: Path, after: Path) -> list[str]:
    """Return the differences between the records of a checkpoint and its copy.

    They are differences in code, versions and machine.
    """
    edited = source_changes(stored_sources(before), stored_sources(after))
    for file in ("code.yaml", MACHINE):
        then, now = (leaves(loaded(path / file)) for path in (before, after))
        for key in [*then, *(key for key in now if key not in then)]:
            if then.get(key) != now.get(key):
                edited.append(f"{key}: {now.get(key)} instead of {then.get(key)}")
    return edited


def report(result: Replay, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(result) | {"equal": result.is_equal}), flush=True)
        return
    page = StdoutConsole()

    def put(text: str) -> None:
        page.print(text, markup=False, soft_wrap=True)

    where = f"{result.run}, steps {result.start} to {result.end}:"
    if result.is_equal:
        put(
            f"{where} equal to the bit ({result.tensors} tensors, {result.lines} lines of"
            " metrics.jsonl)."
        )
        return
    put(f"{where} different.")
    for heading, found in (("metrics.jsonl", result.metrics), ("checkpoint", result.states)):
        for text in found[:SHOWN]:
            put(f"  {heading}, {text}")
        if len(found) > SHOWN:
            put(f"  {heading}, and {len(found) - SHOWN} more")
    for text in result.circumstances or ["code, versions and machine are recorded as the same"]:
        put(f"  now: {text}")
    for text in result.causes:
        put(f"  cause: {text}")


def last_step(folder: RunFolder) -> int:
    """Return the newest step in metrics.jsonl, or 0 without one."""
    try:
        with open(folder.metrics_path, "rb") as file:
            file.seek(max(0, os.path.getsize(file.name) - TAIL_BYTES))
            steps = re.findall(rb'"step":(\d+)', file.read())
    except OSError:
        return 0
    return int(steps[-1]) if steps else 0
