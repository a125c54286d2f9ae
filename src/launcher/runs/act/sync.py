"""Bring the trackers of runs up to date.

They need it after offline runs, an unreachable server, or for a tracker added later.
"""

import argparse
import math
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from omegaconf import OmegaConf

from launcher.config.compose.composer import compose
from launcher.config.explain import unwrap_cause
from launcher.config.messages import reason
from launcher.config.tree import Node
from launcher.config.trust import check_code
from launcher.errors import ConfigError, config_error
from launcher.process.argument_parser import Parser
from launcher.process.waits import wait_for_future
from launcher.rundir.lock_holder import read_holder
from launcher.runs.act.repeat_command import add_trust, check_overrides, select_runs
from launcher.runs.find_runs import RUN_HELP, find_runs
from launcher.runs.stored_run import StoredRun
from launcher.trackers.base import TrackedRun, Tracker, build_trackers
from launcher.trackers.follower import SUPERSEDED, Follower, FollowerLock, list_not_sent


def add_arguments(parser: Parser) -> None:
    which = f"{RUN_HELP}; or a filter; without any: all runs. tracker=wandb: to this tracker"
    parser.argument("words", "RUN", which, nargs="*")
    parser.flag("--follow", "continue until the runs end")
    add_trust(parser)


def run(arguments: argparse.Namespace) -> int:
    """Return 0 if the trackers have everything."""
    overrides = [word for word in arguments.words if word.lstrip("+~").startswith("tracker")]
    names = [word for word in arguments.words if word not in overrides]
    runs = select_runs(names, arguments.outputs) if names else find_runs(arguments.outputs)
    trackers = [(run, trackers_of(run, overrides, arguments.trust)) for run in runs]
    work = [(run, chosen) for run, chosen in trackers if chosen]
    if not runs:
        raise ConfigError(f"There are no runs in {arguments.outputs}.")
    damaged = [run for run in runs if run.state == "damaged"]
    if not work and damaged:
        raise ConfigError(f"'{damaged[0].label}': its run.json cannot be read; repair it first.")
    if not work:
        which = ", ".join(run.label for run in runs) if names else arguments.outputs
        raise ConfigError(f"{which}: has no tracker; name one, e.g. tracker=tensorboard.")
    stop = threading.Event()
    with ThreadPoolExecutor(len(work) if arguments.follow else 1) as pool:
        futures = [pool.submit(sync, *item, arguments.follow, stop) for item in work]
        try:
            results = [wait_for_future(future) for future in futures]
        except BaseException:
            stop.set()
            raise
    return int(not all(results))


def trackers_of(run: StoredRun, overrides: Sequence[str], trust: bool) -> dict[str, Tracker]:
    """Return the trackers of a run's configuration, which `overrides` may change."""
    nodes: Any = run.config.get("tracker") or {}
    if overrides:
        nodes = _choose_trackers(run, nodes, overrides, trust or run.is_own)
    elif not trust and not run.is_own:
        check_code({"tracker": nodes}, run.folder.record_path)
    nodes = OmegaConf.to_container(OmegaConf.create(dict(nodes)))
    trackers: dict[str, Tracker] = {}
    for name in nodes:
        trackers |= _build_trackers(run, nodes, str(name))
    for name, tracker in trackers.items():
        tracker.check(f"tracker.{name}", to_sync=True)
    return trackers


def _build_trackers(run: StoredRun, nodes: Any, name: str) -> dict[str, Tracker]:
    try:
        return build_trackers(nodes, [name])
    except Exception as error:
        rejection = config_error(error)
        if rejection:
            raise rejection from error
        target = nodes[name].get("_target_") if isinstance(nodes[name], Mapping) else nodes[name]
        raise ConfigError(
            f"{run.label}: tracker.{name} ({target}) cannot be loaded:"
            f" {reason(unwrap_cause(error))};"
            " type this command in the project's folder, or name another tracker, e.g."
            " tracker=tensorboard."
        ) from error


def _choose_trackers(run: StoredRun, nodes: Node, overrides: Sequence[str], trusted: bool) -> Any:
    """Compose the group `tracker`; overrides without a choice change the run's own trackers."""
    words: list[str] = []
    if not any(re.match(r"(tracker|\+tracker\.\w+)=", override) for override in overrides):
        if not nodes:
            raise ConfigError(
                f"{overrides[0]}: the run has no tracker; choose one too, e.g. tracker=wandb."
            )
        words.append(f"tracker=[{','.join(nodes)}]")
    if not trusted:
        check_overrides(run, words)
    chosen = compose([*words, *overrides], run.record.get("config_dir")).get("tracker")
    return OmegaConf.to_container(chosen, resolve=False) if chosen else {}


def sync(run: StoredRun, trackers: dict[str, Tracker], follow: bool, stop: threading.Event) -> bool:
    run.folder.check_links()
    lock = FollowerLock(run.folder)
    try:
        lock.acquire()
    except ConfigError:
        holder = read_holder(lock.path) or "another process"
        print(f"{run.label}: {holder} keeps its trackers up to date", flush=True)
        return True
    tracked = TrackedRun(run.folder, run.config)
    try:
        follower = Follower(
            tracked, trackers, lock.check, follow=follow, patience=0.0, hangs=math.inf
        )
        follower.follow_run(stop.is_set)
    finally:
        lock.release()
    for name in trackers:
        if name in follower.unfinished:
            print(f"{run.label}: {name}: {follower.unfinished[name]}", file=sys.stderr, flush=True)
        else:
            print(f"{run.label}: {name} has all steps up to {follower.steps[name]}", flush=True)
    for message in list_not_sent(trackers):
        print(f"{run.label}: {message}", file=sys.stderr, flush=True)
    return not follower.unfinished or follower.state() == SUPERSEDED
