"""Hydra's entry point for each job, which passes the configuration to its dispatch."""

import os
from contextlib import suppress
from typing import Any

from omegaconf import DictConfig

from launcher.config import schema
from launcher.config.construct import construct
from launcher.config.lookup import Runs, check_identity, name_run
from launcher.config.resolve import resolved
from launcher.dispatch.due import folder_of
from launcher.dispatch.environment import join_ranks
from launcher.process import signals
from launcher.rundir.folder import RunFolder
from launcher.slurm.causes import Budget
from launcher.slurm.requeue import guarded


def task(config: DictConfig) -> Any:
    """Validate a configuration that nothing has validated, and run it through its dispatch."""
    # In a process of a Hydra launcher, which has its own handlers.
    if not signals.installed():
        signals.install()
    # A launcher of another package has composed it. Launcher's own have checked it.
    if config.run.get("identity") is None:
        schema.validate(config)
        made = config.run.dir
        if name_run(config, Runs()) is not None:
            # It is not empty.
            with suppress(OSError):
                os.rmdir(made)
    check_identity(config.run)
    RunFolder(config.run.dir).check_links()
    # Several ranks must exit together, so they check once they can agree.
    alone = not join_ranks()
    plain = resolved(config)
    dispatch = construct(plain["dispatch"])

    def work() -> object:
        if alone:
            signals.check()
        return dispatch.run(config)

    if getattr(dispatch, "submits", False):
        return work()
    return guarded(work, folder_of(plain), Budget.of(config.dispatch))
