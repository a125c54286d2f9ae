"""List the checkpoints of runs, verify or compare them, and delete old ones."""

import argparse
import sys

from launcher.checkpoint.find_checkpoint import checkpoint_path, missing_checkpoint
from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser
from launcher.runs.act.delete_checkpoints import LINK_NAMES, delete, parse_keep, seconds_of_age
from launcher.runs.filters import FILTER_HELP, select_some
from launcher.runs.find_runs import find_runs
from launcher.runs.found_checkpoints import FoundCheckpoint, checkpoint_table, verify_checkpoints
from launcher.runs.slurm_jobs import ask_queue


def add_arguments(parser: Parser) -> None:
    parser.argument("words", "FILTER", FILTER_HELP, nargs="*")
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--verify", action="store_true", help="read every byte; exit code 1 if one is damaged"
    )
    action.add_argument(
        "--digest",
        action="store_true",
        help="print a SHA-256 over the weights of each: equal weights have equal digests",
    )
    action.add_argument(
        "--delete",
        action="store_true",
        help="print which could be deleted, of runs that have ended and that nothing else needs",
    )
    parser.argument("--at", "STEP", "only this step, best, or latest of each run")
    parser.argument(
        "--keep",
        "WHICH,...",
        f"with --delete: best, latest or steps that stay (default: {','.join(LINK_NAMES)})",
        type=parse_keep,
    )
    parser.argument(
        "--older",
        "AGE",
        "with --delete: only of runs without a change for so long; 30d, 12h, 2w",
        type=seconds_of_age,
    )
    parser.flag("--yes", "with --delete: delete; without it, nothing is changed")


def run(arguments: argparse.Namespace) -> int:
    check_options(arguments)
    everything = find_runs(arguments.outputs)
    ask_queue(everything)
    runs = select_some(everything, arguments.words, arguments.outputs)
    if arguments.delete:
        return delete(runs, everything, arguments)
    at = arguments.at
    if at is not None:
        # Runs may not have saved this step, or have deleted it.
        having = [run for run in runs if checkpoint_path(run.folder.checkpoints, at) is not None]
        if not having:
            raise missing_checkpoint(runs[0].folder.checkpoints, at, "--at")
        runs = having
    reads = arguments.verify or arguments.digest
    checkpoints = [each for run in runs for each in verify_checkpoints(run, reads, at)]
    not_verified = [each for each in checkpoints if each.problem and not each.is_aside]
    if not checkpoints:
        print("There are no checkpoints.", file=sys.stderr)
    elif arguments.digest:
        for each in checkpoints:
            digest = digest_of(each)
            if digest is not None:
                print(f"{digest}  {each.path}", flush=True)
    else:
        checkpoint_table(checkpoints, reads).print()
    for each in not_verified:
        print(f"{each.path}: {each.problem}", file=sys.stderr)
    return int(reads and bool(not_verified))


def check_options(arguments: argparse.Namespace) -> None:
    given = {"keep": arguments.keep, "older": arguments.older, "yes": arguments.yes or None}
    for name, value in given.items():
        if value is not None and not arguments.delete:
            raise ConfigError(f"--{name}: is an option of --delete.")
    if arguments.delete and arguments.at:
        raise ConfigError("--at: is not for --delete; --keep names what stays.")


def digest_of(checkpoint: FoundCheckpoint) -> str | None:
    """Hash the weights of a checkpoint, or return None if it is damaged or was set aside."""
    # Imported late, since this needs torch.
    from launcher.checkpoint.stored import weights_digest

    is_whole = not checkpoint.problem and not checkpoint.is_aside
    return weights_digest(checkpoint.path) if is_whole else None
