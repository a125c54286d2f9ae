"""Train from one checkpoint of a run to its next again, and compare every bit."""

import argparse
import secrets
import sys
from collections.abc import Iterator
from itertools import pairwise

from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser, path_argument
from launcher.process.plural import plural
from launcher.proof.segment import Replay, changes_in, choose, replay
from launcher.rundir.folder import checkpoint_steps
from launcher.runs.act.repeat_command import add_trust, select_runs
from launcher.runs.find_runs import RUN_HELP
from launcher.runs.stored_run import StoredRun


def add_arguments(parser: Parser) -> None:
    parser.argument("runs", "RUN", f"{RUN_HELP}; or a filter: state=completed sweep=lr", nargs="+")
    parser.argument("--segments", "N", "replay N random ones (default: 3)", type=int, default=3)
    parser.argument("--from", "STEP", "a checkpoint's step, or 0", dest="start", type=int)
    parser.argument("--to", "STEP", "a later checkpoint's step", dest="end", type=int)
    parser.argument(
        "--scratch", "DIR", "where to train (default: the temporary folder)", type=path_argument
    )
    add_trust(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replay segments of runs and print each; return 0 if all are bitwise identical."""
    if arguments.segments < 1:
        raise ConfigError(f"--segments={arguments.segments}: must be at least 1.")
    runs = select_runs(arguments.runs, arguments.outputs)
    are_equal = True
    for stored in runs:
        try:
            for result in replays(stored, arguments):
                are_equal &= result.is_equal
        except ConfigError as error:
            if len(runs) == 1:
                raise
            are_equal = False
            print("Not replayed:", "; ".join(error.messages), flush=True)
    return int(not are_equal)


def replays(run: StoredRun, arguments: argparse.Namespace) -> Iterator[Replay]:
    """Replay the chosen segments of a run, and report each."""
    for start, end in segments_of(run, arguments):
        if sys.stderr.isatty():
            print(f"{run.label}: training steps {start} to {end} again.", file=sys.stderr)
        result = replay(run, start, end, arguments.scratch, arguments.trust)
        print(*lines_of(result), sep="\n", flush=True)
        yield result


def segments_of(run: StoredRun, arguments: argparse.Namespace) -> list[tuple[int, int]]:
    """Return the pairs of checkpoints that the command line names, or random neighbors."""
    steps = checkpoint_steps(run.folder.checkpoints)
    if not steps:
        root = run.folder.checkpoints
        target = ""
        if root.is_symlink() and not root.exists():
            target = (
                f", which points to {root.readlink()}, a folder that this machine does not have"
            )
        raise ConfigError(
            f"{run.label}: has no checkpoint in {root}{target}, so there is nothing to replay."
        )
    bounds = [0, *steps]
    start = arguments.start
    end = arguments.end
    for option, step, options in (("--from", start, bounds[:-1]), ("--to", end, steps)):
        if step is not None and step not in options:
            raise ConfigError(
                f"{option}={step}: {run.label} has no such checkpoint; it has"
                f" {', '.join(map(str, options))}. Train it with"
                " hooks.checkpointing.keep_previous=N to keep more."
            )
    if start is None and end is None:
        # A change of the configuration within a pair cannot be repeated.
        everything = list(pairwise(bounds))
        pairs = [pair for pair in everything if not changes_in(run, *pair)] or everything
        return choose(pairs, arguments.segments, secrets.token_hex(8))
    if end is None:
        end = next(step for step in steps if step > start)
    elif start is None:
        start = max(step for step in bounds if step < end)
    if start >= end:
        raise ConfigError(f"--from={start}: must be before --to={end}.")
    return [(start, end)]


def lines_of(result: Replay) -> Iterator[str]:
    where = f"{result.run}, steps {result.start} to {result.end}:"
    if result.is_equal:
        tensors = plural(result.diff.tensors, "tensor")
        lines = plural(result.diff.lines, "line")
        yield f"{where} bitwise identical ({tensors}, {lines} of metrics.jsonl)."
        return
    yield f"{where} different."
    yield from (f"  {text}" for text in result.diff.first_texts())
    same = "code, versions and machine are recorded as the same"
    yield from (f"  now: {text}" for text in result.circumstances or [same])
    yield from (f"  cause: {text}" for text in result.causes)
