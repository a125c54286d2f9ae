"""Hash the weights of runs: equal weights have equal digests, however they were saved."""

import argparse

from launcher.checkpoint.find import find_checkpoint
from launcher.runs.find import RUN_HELP, find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="+", help=RUN_HELP)
    parser.add_argument(
        "--checkpoint",
        default="latest",
        metavar="WHICH",
        help="latest (default), best, a step, or a checkpoint's folder",
    )


def run(arguments: argparse.Namespace) -> int:
    folders = [find_run(name, arguments.outputs).folder for name in arguments.runs]
    chosen = [
        find_checkpoint(folder.checkpoints, arguments.checkpoint, "--checkpoint")
        for folder in folders
    ]
    # Imported late, since this needs torch.
    from launcher.checkpoint import weights_digest

    for path in chosen:
        print(f"{weights_digest(path)}  {path}", flush=True)
    return 0
