"""End runs: a SLURM job is cancelled, a process of this machine is asked to stop. Each saves first, and can go on."""

import argparse
import os
import signal
import sys

from launcher.errors import ConfigError
from launcher.run.lock import held_here
from launcher.run.record import RunRecord
from launcher.runs.compare import select
from launcher.runs.find import Run, ask_queue, find_runs
from launcher.slurm import scheduler


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="FILTER",
        help="optimizer.lr=1e-3, model=mlp, state=queued, part of a name, or the beginning of an id",
    )
    parser.add_argument("--all", action="store_true", help="every run that is queued or running")


def run(arguments: argparse.Namespace) -> int:
    chosen = chosen_runs(arguments)
    in_queue = [one for one in chosen if one.job is not None]
    here = [one for one in chosen if one.job is None and held_here(one.folder) is not None]
    try:
        scheduler.cancel([one.job.id for one in in_queue if one.job is not None])
    except scheduler.SchedulerError as error:
        print(f"Not all could be cancelled: {error}", file=sys.stderr)
        return 1
    for one in in_queue:
        if one.job is not None and one.job.is_pending:  # one that runs says so itself, once it has saved
            RunRecord(one.folder, id=one.id, name=one.name).revise(
                "cancelled", "cancelled", reason="the SLURM job was cancelled", slurm_job_id=one.job.id
            )
        print(f"{one.name}/{one.id}: SLURM job {one.job_id} cancelled")
    for one in here:
        holder = held_here(one.folder)
        if holder is not None:
            os.kill(holder.pid, signal.SIGTERM)
            print(f"{one.name}/{one.id}: process {holder.pid} asked to stop")
    elsewhere = [one for one in chosen if one.state == "running" and one not in in_queue and one not in here]
    for one in elsewhere:
        print(f"{one.name}/{one.id}: runs on {one.node}, where it is to be stopped", file=sys.stderr)
    if not in_queue and not here and not elsewhere:
        print("None of these runs is queued or running.", file=sys.stderr)
    return 1 if elsewhere else 0


def chosen_runs(arguments: argparse.Namespace) -> list[Run]:
    """The runs that a command's words mean.

    Raises:
        ConfigError: no words, no --all; or words that mean no run.
    """
    if not arguments.words and not arguments.all:
        raise ConfigError("which runs? Give a name, the beginning of an id, key=value, or --all.")
    runs = find_runs(arguments.outputs)
    ask_queue(runs)
    chosen = select(runs, [word.removeprefix(f"{arguments.outputs}/") for word in arguments.words])
    if not chosen:
        raise ConfigError(f"'{' '.join(arguments.words)}': means no run in {arguments.outputs}.")
    return chosen
