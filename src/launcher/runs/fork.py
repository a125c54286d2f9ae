"""Start a new run from a checkpoint of another: weights, optimizer and data position."""

import argparse
from collections.abc import Sequence

from launcher.checkpoint.find import find_checkpoint
from launcher.runs.find import RUN_HELP, find_run
from launcher.runs.rerun import applicable, key_of, quoted, run_command, start_in_place
from launcher.runs.stored_run import StoredRun

PARTS = ("optimizer", "data")
NOT_INHERITED = ("run.id", "run.fork_from", "run.fork_without", "run.init_from", "trainer.pause_at")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("overrides", nargs="*", default=[], metavar="OVERRIDE", help="what differs: optimizer.lr=0.001")
    parser.add_argument("--at", default="latest", metavar="STEP", help="a step, best, or latest (default)")
    parser.add_argument(
        "--without", action="append", choices=PARTS, default=[], metavar="PART",
        help="do not take the optimizer's moments (optimizer), or the data position (data)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    source = find_run(arguments.run, arguments.outputs)
    return start_in_place(fork_command(source, arguments.overrides, arguments.at, arguments.without))


def fork_command(
    run: StoredRun, overrides: Sequence[str], at: str = "latest", without: Sequence[str] = ()
) -> list[str]:
    """The arguments of `python -m launcher` for a fork.

    Raises:
        ConfigError: there is no such checkpoint, or it is damaged.
    """
    path = find_checkpoint(run.folder.checkpoints, at, "--at", hashes=False)
    typed = {key_of(override) for override in overrides}
    is_elsewhere = "paths.outputs" in typed
    source = str(path.absolute())
    if path.parent == run.folder.checkpoints and not is_elsewhere:
        source = f"{run.id}/{int(path.name.removeprefix('step-'))}"
    own = [f"run.fork_from={quoted(source)}"]
    own += [f"run.fork_without=[{','.join(sorted(set(without)))}]"] if without else []
    inherited = [word for word in run_command(run) if key_of(word) not in NOT_INHERITED]
    inherited = [word for word in inherited if not (is_elsewhere and key_of(word) == "paths.outputs")]
    at_flags = next((place for place, word in enumerate(inherited) if word.startswith("--")), len(inherited))
    kept = applicable(inherited[:at_flags], overrides, run.record.get("config_dir"))
    return [*kept, *own, *overrides, *inherited[at_flags:]]
