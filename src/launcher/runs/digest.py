"""Hash the weights of runs: equal weights have equal digests, however they were saved."""

import argparse
from pathlib import Path

from launcher.checkpoint.manifest import CorruptCheckpoint, verify
from launcher.checkpoint.store import BEST, LATEST, CheckpointStore, step_name
from launcher.config.messages import hint
from launcher.errors import ConfigError
from launcher.runs.find import RUN_HELP, StoredRun, find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="+", help=RUN_HELP)
    parser.add_argument(
        "--checkpoint",
        default="latest",
        metavar="WHICH",
        help="latest (default), best, a step, or a checkpoint's folder",
    )


def run(arguments: argparse.Namespace) -> int:
    chosen = [checkpoint_path(find_run(name, arguments.outputs), arguments.checkpoint) for name in arguments.runs]
    from launcher.checkpoint import weights_digest  # late: this needs torch

    for path in chosen:
        try:
            verify(path)  # else rot would pass for other weights
            print(f"{weights_digest(path)}  {path}", flush=True)
        except CorruptCheckpoint as error:
            raise ConfigError(f"--checkpoint={arguments.checkpoint}: {path} is not whole: {error}.") from error
    return 0


def checkpoint_path(run: StoredRun, which: str) -> Path:
    """The folder of a run's checkpoint. Raises ConfigError naming those there are."""
    store = CheckpointStore(run.folder.checkpoints)
    steps = store.steps()
    if (Path(which) / "manifest.json").is_file():
        return Path(which)
    step = store.linked(which) if which in (LATEST, BEST) else None
    if which == LATEST and step is None and steps:
        step = steps[-1]  # the link may be lost where folders were copied
    if which.removeprefix("step-").isdecimal():
        step = int(which.removeprefix("step-"))
    if step in steps:
        return store.path(step)
    there = f"it has {', '.join(step_name(s) for s in steps)}" if steps else "it has none"
    near = "." if which in (LATEST, BEST) or which.isdecimal() else hint(which, (LATEST, BEST))
    raise ConfigError(f"--checkpoint={which}: {run.name}/{run.id} has no such checkpoint, {there}{near}")
