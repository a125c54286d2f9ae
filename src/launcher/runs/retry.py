"""Submit runs to SLURM again that failed, were preempted, or were lost; each goes on from its newest checkpoint."""

import argparse
import json
import sys
from collections import defaultdict

from launcher.runs.cancel import chosen_runs
from launcher.runs.find import Run
from launcher.slurm.submission import FROZEN, frozen

RETRIED = ("failed", "preempted", "stale")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="FILTER",
        help="optimizer.lr=1e-3, model=mlp, state=failed, part of a name, or the beginning of an id; cancelled runs "
        "are taken with state=cancelled alone",
    )
    parser.add_argument("--all", action="store_true", help="every run that failed, was preempted, or was lost")


def run(arguments: argparse.Namespace) -> int:
    states = (*RETRIED, "cancelled") if "state=cancelled" in arguments.words else RETRIED
    due = [one for one in chosen_runs(arguments) if one.state in states and one.job is None]
    if not due:
        print("None of these runs failed, was preempted, or was lost.", file=sys.stderr)
        return 0
    there = [one for one in due if (one.folder.path / FROZEN).exists()]
    for one in (one for one in due if one not in there):
        command = " ".join(["python -m launcher", *one.overrides])
        print(f"{one.name}/{one.id}: was not submitted to SLURM; it goes on with: {command}", file=sys.stderr)
    submit(there)
    return 0 if len(there) == len(due) else 1


def submit(runs: list[Run]) -> None:
    """Submit runs as they were frozen; those with the same resources as one array.

    Raises:
        ConfigError: SLURM refuses them.
    """
    from hydra.utils import instantiate

    groups: dict[str, list[Run]] = defaultdict(list)
    for one in runs:
        config, _ = frozen(one.folder)
        groups[json.dumps(config["dispatch"], sort_keys=True)].append(one)
    for given, group in groups.items():
        settings = {**json.loads(given), "wait": False, "dry_run": False}
        instantiate(settings, _recursive_=False).again([one.folder for one in group])
