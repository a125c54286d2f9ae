"""Passes a checked configuration to its dispatch."""

from launcher.config.construct import construct
from launcher.config.run_config import RunConfig
from launcher.dispatch.due import folder_of
from launcher.dispatch.environment import join_ranks
from launcher.process import signals
from launcher.slurm.causes import Budget
from launcher.slurm.requeue import guarded


def task(run: RunConfig) -> object:
    """Run a configuration through its dispatch, and return the value of its job."""
    # In a process of a Hydra launcher, which has its own handlers.
    if not signals.installed():
        signals.install()
    run.folder.check_links()
    # Several ranks must exit together, so they check once they can agree.
    alone = not join_ranks()
    dispatch = construct(run.plain["dispatch"])

    def work() -> object:
        if alone:
            signals.check()
        result: object = dispatch.run(run)
        return result

    if getattr(dispatch, "submits", False):
        return work()
    return guarded(work, folder_of(run.plain), Budget.of(run.plain["dispatch"]))
