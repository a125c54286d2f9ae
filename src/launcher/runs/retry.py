"""Submit runs again that failed, were preempted or were lost. Each resumes from its newest checkpoint."""

import argparse
import json
import sys
from collections import defaultdict
from contextlib import chdir
from pathlib import Path

from launcher.config.construct import construct
from launcher.errors import ConfigError
from launcher.run.folder import RunFolder
from launcher.runs.cancel import chosen_runs, record_cancelled
from launcher.runs.filters import FILTER_HELP
from launcher.runs.stored_run import StoredRun
from launcher.slurm.submission import frozen, frozen_code

RETRIED = ("failed", "preempted", "stale")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="FILTER",
        help=f"{FILTER_HELP}; cancelled runs are submitted only with state=cancelled",
    )
    parser.add_argument("--all", action="store_true", help="every run that failed, was preempted, or was lost")


def run(arguments: argparse.Namespace) -> int:
    states = (*RETRIED, "cancelled") if "state=cancelled" in arguments.words else RETRIED
    chosen = chosen_runs(arguments)
    due = [run for run in chosen if run.state in states and run.job is None]
    completing = [run for run in chosen if run.job is not None and run.job.state == "COMPLETING"]
    for run in completing:
        print(f"{run.label}: SLURM job {run.job_id} is still completing; retry it once it has left", file=sys.stderr)
    for run in chosen:
        if run.was_cancelled and run not in due:
            record_cancelled(run, run.open_job_id)
            print(
                f"{run.label}: its SLURM job was cancelled; to submit it: retry {run.id} state=cancelled",
                file=sys.stderr,
            )
    if not due and completing:
        return 1
    if not due:
        print("None of these runs failed, was preempted, or was lost.", file=sys.stderr)
        return 0
    submitted = [run for run in due if run.note is not None and run.note.script]
    for run in due:
        if run not in submitted:
            command = f"python -m launcher.runs resume {run.id}"
            print(f"{run.label}: was not submitted with dispatch=slurm; resume it with: {command}", file=sys.stderr)
    submit(submitted)
    return 0 if len(submitted) == len(due) and not completing else 1


def submit(runs: list[StoredRun]) -> None:
    """Submit runs with their frozen configuration and code; those with equal resources become one array.

    Raises:
        ConfigError: SLURM refuses them, or the folder in which they were submitted is gone.
    """

    groups: dict[str, list[RunFolder]] = defaultdict(list)
    for run in runs:
        config, _ = frozen(run.folder)
        resources = json.dumps([config["dispatch"], *frozen_code(run.folder)], sort_keys=True)
        groups[resources].append(RunFolder(run.folder.path.absolute()))
    for resources, folders in groups.items():
        dispatch, cwd, snapshot = json.loads(resources)
        if cwd is not None and not Path(cwd).is_dir():
            raise ConfigError(f"'{folders[0].path}': the folder in which it was submitted ({cwd}) is gone; create it.")
        settings = {**dispatch, "wait": False, "dry_run": False}
        with chdir(cwd or "."):  # paths in the configuration and the user's package are relative to it
            construct(settings).resubmit(folders, Path(snapshot) if snapshot else None)
