"""Submit runs again that failed, were preempted or were lost."""

import argparse
import json
import shlex
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import chdir
from pathlib import Path

from hydra.errors import HydraException

from launcher.config.compose.overrides import parse
from launcher.config.construct import construct
from launcher.config.identity.record_entry import command_record
from launcher.config.run_config import resolve_node
from launcher.config.schema.validate import check_dispatch
from launcher.config.tree import Tree
from launcher.config.trust import check_code, check_overrides, reject
from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser
from launcher.process.files import read_file
from launcher.rundir.folder import RunFolder, run_name
from launcher.rundir.signing import is_own_record
from launcher.runs.act.cancel import choose_runs, record_end, warn
from launcher.runs.act.repeat_command import add_trust
from launcher.runs.filters import FILTER_HELP
from launcher.runs.stored_run import StoredRun
from launcher.slurm.scheduler import ENDING
from launcher.slurm.submission import FROZEN, frozen_code, read_frozen

RETRIED_STATES = ("failed", "preempted", "stale")


def add_arguments(parser: Parser) -> None:
    parser.argument(
        "words",
        "FILTER",
        f"{FILTER_HELP}; cancelled runs are submitted only with state=cancelled",
        nargs="*",
    )
    parser.flag("--all", "every run that failed, was preempted, or was lost")
    parser.argument(
        "--set",
        "OVERRIDE",
        "another resource: dispatch.mem=64G; may be repeated",
        action="append",
        default=[],
        dest="changes",
    )
    parser.flag("--dry-run", "print the runs, scripts and problems; submit nothing")
    add_trust(parser)


def run(arguments: argparse.Namespace) -> int:
    changes = parse_changes(arguments.changes)
    states = (
        (*RETRIED_STATES, "cancelled") if "state=cancelled" in arguments.words else RETRIED_STATES
    )
    _, chosen = choose_runs(arguments)
    due = [run for run in chosen if run.state in states and run.job is None]
    completing = [run for run in chosen if run.job is not None and run.job.state == ENDING]
    for run in completing:
        warn(run, f"SLURM job {run.job_id} is still completing; retry it once it has left")
    cancelled = [run for run in chosen if run.unrecorded_end == "cancelled" and run not in due]
    recorded = [report_cancelled(run, arguments.dry_run) for run in cancelled]
    if not arguments.dry_run:
        recorded += map(record_unrecorded, due)
    if not due and not completing:
        print("None of these runs failed, was preempted, or was lost.", file=sys.stderr)
    submitted = [run for run in due if run.note is not None and run.note.script]
    for run in due:
        if run not in submitted:
            command = f"python -m launcher.runs resume {shlex.quote(run.label)}"
            warn(run, f"was not submitted with dispatch=slurm; resume it with: {command}")
    submit(submitted, changes, arguments.dry_run, arguments.trust)
    return int(len(submitted) < len(due) or bool(completing) or not all(recorded))


def record_unrecorded(run: StoredRun) -> bool:
    """Record SLURM's state of a job that left no record; return False if that failed."""
    end = run.unrecorded_end
    return end is None or record_end(run, end, run.slurm_reason, run.open_job_id)


def report_cancelled(run: StoredRun, dry_run: bool) -> bool:
    """Report a run that was cancelled unseen, and record it; return False if that failed."""
    is_recorded = dry_run or record_unrecorded(run)
    warn(run, f"its SLURM job was cancelled; to submit it: retry {run.id} state=cancelled")
    return is_recorded


def parse_changes(overrides: Sequence[str]) -> dict[str, object]:
    """Parse the values of `--set`, by their keys below `dispatch`."""
    changes: dict[str, object] = {}
    for text in overrides:
        try:
            parsed = parse(text)
        except HydraException as error:
            raise ConfigError(
                f"--set={text}: is not an override; e.g. --set dispatch.mem=64G."
            ) from error
        group, _, key = parsed.key_or_group.partition(".")
        if group != "dispatch" or key in ("", "wait", "dry_run"):
            raise ConfigError(
                f"--set={text}: retry changes the resources of dispatch alone; e.g. --set"
                " dispatch.mem=64G, or --dry-run."
            )
        if parsed.is_sweep_override():
            quoted = f'{parsed.key_or_group}="{text.partition("=")[2]}"'
            raise ConfigError(f"--set={text}: is several values; as one text: --set '{quoted}'.")
        changes[key] = parsed.value()
    return changes


def submit(
    runs: list[StoredRun], changes: Mapping[str, object], dry_run: bool, trust: bool
) -> None:
    """Submit runs with their frozen configuration and code; equal resources become one array."""
    groups: dict[str, list[RunFolder]] = defaultdict(list)
    for run in runs:
        config, _ = read_frozen(run.folder)
        if not trust:
            check_frozen(run, changes)
        dispatch = change(config, changes)
        resources = json.dumps([dispatch, *frozen_code(run.folder)], sort_keys=True)
        groups[resources].append(RunFolder(run.folder.path.absolute()))
    for resources, folders in groups.items():
        dispatch, cwd, snapshot = json.loads(resources)
        if cwd is not None and not Path(cwd).is_dir():
            raise ConfigError(
                f"'{folders[0].path}': the folder in which it was submitted ({cwd}) is gone;"
                " create it."
            )
        code = None if snapshot is None or "snapshot" in changes else Path(snapshot)
        if dry_run:
            print(*(f"# {run_name(folder.path)}" for folder in folders), sep="\n", flush=True)
        # Paths in the configuration and the user's package are relative to it.
        with chdir(cwd or "."):
            settings = resolve_node({"dispatch": dispatch}, "dispatch")
            construct(settings | {"wait": False, "dry_run": dry_run}).resubmit(
                folders, code, dispatch
            )


def check_frozen(run: StoredRun, changes: Mapping[str, object]) -> None:
    """Check what a run's job would run, unless this user has signed it."""
    file = run.folder.path / FROZEN
    saved = json.loads(read_file(file))
    if is_own_record(FROZEN, saved):
        return
    cwd = saved.get("cwd")
    snapshot = saved.get("snapshot")
    if cwd is not None and Path(cwd).resolve() != Path.cwd().resolve():
        reject(f"cwd={cwd}", file)
    if snapshot is not None and "snapshot" not in changes:
        reject(f"snapshot={snapshot}", file)
    command = command_record(saved["config"], saved["hydra"])
    check_overrides(command["overrides"] or (), command["config_dir"], file)
    dispatch = {
        key: value for key, value in saved["config"]["dispatch"].items() if key not in changes
    }
    check_code({**saved["config"], "dispatch": dispatch}, file)


def change(config: Tree, changes: Mapping[str, object]) -> Tree:
    dispatch: Tree = config["dispatch"]
    for key, value in changes.items():
        name, _, flag = key.partition(".")
        dispatch[name] = {**(dispatch.get(name) or {}), flag: value} if flag else value
    resolved = resolve_node({"dispatch": dispatch}, "dispatch")
    if changes:
        check_dispatch(config | {"dispatch": resolved})
    return dispatch
