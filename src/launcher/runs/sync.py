"""Bring the trackers of runs up to date: after offline runs, an unreachable server, or a tracker added later."""

import argparse
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from launcher.config.resolve import escaped
from launcher.errors import ConfigError
from launcher.run.holder import read_holder
from launcher.runs.find import RUN_HELP, find_runs
from launcher.runs.rerun import selected
from launcher.runs.stored_run import StoredRun
from launcher.trackers.base import TrackedRun, Tracker, build_trackers
from launcher.trackers.follower import SUPERSEDED, Follower, FollowerLock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    which = f"{RUN_HELP}; or a filter; without any: all runs. tracker=wandb: to this tracker"
    parser.add_argument("words", nargs="*", metavar="RUN", help=which)
    parser.add_argument("--follow", action="store_true", help="continue until the runs end")


def run(arguments: argparse.Namespace) -> int:
    """0: the trackers have everything."""
    overrides = [word for word in arguments.words if word.lstrip("+~").startswith("tracker")]
    names = [word for word in arguments.words if word not in overrides]
    runs = [run for name in names for run in selected(name, arguments.outputs)]
    runs = runs if names else find_runs(arguments.outputs)
    all_work = [(run, *with_trackers(run, overrides)) for run in runs]
    work = [(run, tracked, trackers) for run, tracked, trackers in all_work if trackers]
    if not work:
        which = ", ".join(run.label for run in runs) if names else f"no run in {arguments.outputs}"
        raise ConfigError(f"{which}: has no tracker; name one, e.g. tracker=tensorboard.")
    stop = threading.Event()
    with ThreadPoolExecutor(len(work) if arguments.follow else 1) as pool:
        futures = [pool.submit(sync, *item, follow=arguments.follow, stop=stop) for item in work]
        try:
            results = [future.result() for future in futures]
        except BaseException:
            stop.set()
            raise
    return 0 if all(results) else 1


def with_trackers(run: StoredRun, overrides: Sequence[str]) -> tuple[TrackedRun, dict[str, Tracker]]:
    """A run with the trackers of its configuration, or those that `overrides` choose and change.

    Raises:
        ConfigError: the overrides do not compose, or a library or a key is missing.
    """
    config = run.config
    if overrides:
        config["tracker"] = _chosen(config, overrides, run.record.get("config_dir"))
    trackers = build_trackers(escaped(config.get("tracker")))
    for name, tracker in trackers.items():
        tracker.check(f"tracker.{name}", to_sync=True)
    return TrackedRun(run.folder, config), trackers


def _chosen(config: dict[str, Any], overrides: Sequence[str], config_dir: str | Path | None) -> Any:
    """The group `tracker` as the overrides compose it. Without a choice they change the run's own trackers."""
    from omegaconf import OmegaConf

    from launcher.config.compose import compose

    nodes = config.get("tracker") or {}
    if not any(override.startswith("tracker=") for override in overrides):
        if not nodes:
            raise ConfigError(f"{overrides[0]}: the run has no tracker; choose one too, e.g. tracker=wandb.")
        overrides = [f"tracker=[{','.join(nodes)}]", *overrides]
    chosen = compose(overrides, config_dir).get("tracker")
    tracker = OmegaConf.to_container(chosen, resolve=False) if chosen else {}
    whole = OmegaConf.create({**escaped(config), "tracker": tracker})
    return OmegaConf.to_container(whole.tracker, resolve=True)


def sync(
    run: StoredRun, tracked: TrackedRun, trackers: dict[str, Tracker], *, follow: bool, stop: threading.Event
) -> bool:
    run.folder.check_links()
    lock = FollowerLock(run.folder)
    try:
        lock.acquire()
    except ConfigError:
        print(f"{run.label}: {read_holder(lock.path) or 'another process'} keeps its trackers up to date", flush=True)
        return True
    try:
        follower = Follower(tracked, trackers, lock.check, follow=follow, patience=0.0, hangs=None)
        follower.follow_run(stop.is_set)
    finally:
        lock.release()
    for name in trackers:
        if name in follower.unfinished:
            print(f"{run.label}: {name}: {follower.unfinished[name]}", file=sys.stderr, flush=True)
        else:
            print(f"{run.label}: {name} has all steps up to {follower.steps[name]}", flush=True)
    return not follower.unfinished or follower.state() == SUPERSEDED
