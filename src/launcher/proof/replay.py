"""Train from one checkpoint of a run to its next again, and compare every bit."""

import argparse
import json
import os
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from launcher.errors import ConfigError
from launcher.proof.segment import Replay, replay
from launcher.rundir.files import path_argument
from launcher.rundir.folder import RunFolder, checkpoint_steps
from launcher.rundir.metrics import last_step
from launcher.runs.bar import Bar, bar
from launcher.runs.find import RUN_HELP
from launcher.runs.page import StdoutConsole
from launcher.runs.rerun import add_trust, select_runs
from launcher.runs.stored_run import StoredRun
from launcher.runs.table import Table

SHOWN = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help=f"{RUN_HELP}; or a filter: state=completed sweep=lr",
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
        help="where to train (default: the temporary folder)",
    )
    parser.add_argument("--json", action="store_true", help="a line for each segment")
    add_trust(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replay the segments of a run and print each; return 0 if all are bitwise identical."""
    if arguments.segments < 1:
        raise ConfigError(f"--segments={arguments.segments}: must be at least 1.")
    runs = select_runs(arguments.runs, arguments.outputs)
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


def replays(run: StoredRun, arguments: argparse.Namespace, of: str = "") -> Iterator[Replay]:
    """Replay the chosen segments of a run, and report each."""
    for start, end in segments_of(run, arguments):
        with bar(end - start, f"{run.label}{of}, steps {start} to {end}") as shown:

            def watch(folder: Path, shown: Bar = shown, start: int = start) -> Callable[[], None]:
                return lambda: shown.reach(
                    max(0, last_step(RunFolder(folder).metrics_path) - start)
                )

            result = replay(run, start, end, arguments.scratch, watch, arguments.trust)
        report(result, arguments.json)
        yield result


def segments_of(run: StoredRun, arguments: argparse.Namespace) -> list[tuple[int, int]]:
    """Return the pairs of checkpoints that the command line names, or random neighbors."""
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
    """Return the beginning of a message; the run's checkpoints may be on another machine."""
    root = run.folder.checkpoints
    if root.is_symlink() and not root.exists():
        target = f"which points to {os.readlink(root)}, a folder that this machine does not have"
        return f"{run.label}: has no checkpoint in {root}, {target}"
    return f"{run.label}: has no checkpoint in {root}"


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps[:12])) + (
        f" and {len(steps) - 12} more" if len(steps) > 12 else ""
    )


def report(result: Replay, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.as_json()), flush=True)
        return
    page = StdoutConsole()

    def put(text: str) -> None:
        page.print(text, markup=False, soft_wrap=True)

    where = f"{result.run}, steps {result.start} to {result.end}:"
    if result.is_equal:
        put(
            f"{where} equal to the bit ({result.diff.tensors} tensors, {result.diff.lines} lines of"
            " metrics.jsonl)."
        )
        return
    put(f"{where} different.")
    for heading, found in (
        ("metrics.jsonl", result.diff.metrics),
        ("checkpoint", result.diff.states),
    ):
        for text in found[:SHOWN]:
            put(f"  {heading}, {text}")
        if len(found) > SHOWN:
            put(f"  {heading}, and {len(found) - SHOWN} more")
    for text in result.circumstances or ["code, versions and machine are recorded as the same"]:
        put(f"  now: {text}")
    for text in result.causes:
        put(f"  cause: {text}")
