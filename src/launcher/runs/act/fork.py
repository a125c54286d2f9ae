"""Start a new run from a checkpoint of another: weights, optimizer and data position."""

import argparse
from collections.abc import Sequence

from launcher.checkpoint.find_checkpoint import find_checkpoint
from launcher.process.argument_parser import Parser
from launcher.runs.act.repeat_command import (
    add_trust,
    applicable,
    check_overrides,
    config_dirs,
    key_of,
    quote,
    run_command,
    start_in_place,
)
from launcher.runs.find_runs import RUN_HELP, find_run
from launcher.runs.stored_run import StoredRun

NOT_INHERITED = (
    *("run.id", "run.dir", "run.fork_from", "run.fork_without", "run.init_from"),
    "trainer.pause_at",
)


def add_arguments(parser: Parser) -> None:
    parser.argument("run", "RUN", RUN_HELP)
    parser.argument(
        "overrides", "OVERRIDE", "what differs: optimizer.lr=0.001", nargs="*", default=[]
    )
    parser.argument("--at", "STEP", "a step, best, or latest (default)", default="latest")
    add_trust(parser)


def run(arguments: argparse.Namespace) -> int:
    source = find_run(arguments.run, arguments.outputs)
    return start_in_place(fork_command(source, arguments.overrides, arguments.at, arguments.trust))


def fork_command(
    run: StoredRun, overrides: Sequence[str], at: str = "latest", trust: bool = False
) -> list[str]:
    """Return the arguments of `python -m launcher` for a fork."""
    path = find_checkpoint(run.folder.checkpoints, at, "--at", hashes=False)
    is_elsewhere = "paths.outputs" in map(key_of, overrides)
    source = str(path.absolute())
    if path.parent == run.folder.checkpoints and not is_elsewhere:
        source = f"{run.id}/{int(path.name.removeprefix('step-'))}"
    if not trust:
        check_overrides(run, run.overrides)
    left_out = (*NOT_INHERITED, "paths.outputs") if is_elsewhere else NOT_INHERITED
    flags = config_dirs(run)
    words = run_command(run, trust=True)[: -len(flags) or None]
    inherited = [word for word in words if key_of(word) not in left_out]
    return [
        *applicable(inherited, overrides, run.record.get("config_dir")),
        f"run.fork_from={quote(source)}",
        *overrides,
        *flags,
    ]
