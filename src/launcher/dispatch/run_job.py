"""Two steps of a checked configuration: its dispatch gets it, and its job runs in this process."""

import importlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import takewhile
from pathlib import Path

from launcher.checkpoint.read_ahead import read_ahead
from launcher.config.construct import construct, import_targets, instantiate
from launcher.config.run_config import RunConfig
from launcher.config.tree import flat
from launcher.dispatch import forced_exit
from launcher.dispatch.environment import join_ranks
from launcher.dispatch.skip_reasons import folder_of
from launcher.errors import ConfigError
from launcher.process import deadline, signals
from launcher.process.files import remove_empty
from launcher.process.user_exits import exits_are_errors
from launcher.process.users import explain_denial
from launcher.rundir.folder import outside_places
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.slurm.causes import Budget
from launcher.slurm.requeue import run_guarded

IMPORTS = 120.0
"""Seconds that importing torch may take on a busy machine before the grace period of a signal
begins."""


def dispatch_run(run: RunConfig) -> object:
    """Pass a configuration to its dispatch, and return the value of its job."""
    # In a process of a Hydra launcher, which has its own handlers.
    if not signals.handled_signals():
        signals.install()
    # Several ranks must exit together, so they check once they can agree.
    alone = not join_ranks()
    dispatch = construct(run.plain["dispatch"])

    def work() -> object:
        if alone:
            signals.check_early()
        result: object = dispatch.run(run)
        return result

    with _existing(run.folder.path, "paths.outputs"):
        run.folder.check_links()
        if run.trains:
            check_checkpoints_link(run)
        # A folder of checkpoints may be on a disk of the node that the job gets.
        if getattr(dispatch, "submits", False):
            return work()
        with ExitStack() as stack:
            for place in checkpoint_places(run):
                stack.enter_context(_existing(place, "hooks.checkpointing.path"))
            return run_guarded(work, folder_of(run), Budget.of(run.plain["dispatch"]))


def check_checkpoints_link(run: RunConfig) -> None:
    """Check that `checkpoints`, if it leads elsewhere, leads to a place of `hooks.*.path`."""
    is_foreign, link = run.folder.has_foreign_checkpoints, run.folder.checkpoints
    named = {"run.dir": run.run.dir, **flat({"hooks": run.plain.get("hooks") or {}})}
    if is_foreign(named) and is_foreign(RunOnDisk.read(run.folder).settings):
        raise ConfigError(
            f"hooks.checkpointing.path: {link} is a link to {os.path.realpath(link)}, which neither"
            " the command nor the run names; set the key to the folder of the checkpoints of all"
            " runs, or remove the link."
        )


def checkpoint_places(run: RunConfig) -> list[Path]:
    """Return the folders outside the run's own that its training writes checkpoints into."""
    if not run.trains:
        return []
    settings = {"run.dir": run.run.dir, **flat({"hooks": run.plain.get("hooks") or {}})}
    # A place may be a link, whose target need not exist.
    return [Path(os.path.realpath(place)) for place in outside_places(run.folder.path, settings)]


def execute_job(config: RunConfig) -> object:
    """Run the job of a configuration in this process, and return its value."""
    deadline.progress(IMPORTS)
    # Modules from here on import torch.
    with read_ahead(config.folder) if config.trains else nullcontext():
        importlib.import_module("launcher.train.build")
        if config.trains:
            import_targets(config.plain)
    from launcher.process import ranks
    from launcher.process.torch_settings import restoring_settings

    forced_exit.arm(config.plain["dispatch"])
    with restoring_settings(), exits_are_errors():
        value = instantiate(config.plain["job"]).run(config)
    ranks.wait_for_readers()
    return value


@contextmanager
def _existing(folder: Path, key: str) -> Iterator[None]:
    """Make a folder that a key names, as Hydra does for its jobs; empty ones are removed again."""
    made = list(takewhile(lambda each: not os.path.exists(each), (folder, *folder.parents)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        cause, remedy = explain_denial(error, folder)
        raise ConfigError(
            f"{key}: {error.filename} cannot be created ({cause}); use another folder{remedy}."
        ) from error
    try:
        yield
    finally:
        remove_empty(*made)
