"""Passes a checked configuration to its dispatch."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

from launcher.config.construct import construct
from launcher.config.run_config import RunConfig
from launcher.dispatch.due import folder_of
from launcher.dispatch.environment import join_ranks
from launcher.errors import ConfigError
from launcher.process import signals
from launcher.rundir.files import remove_empty
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

    with _existing(run.folder.path):
        if getattr(dispatch, "submits", False):
            return work()
        return guarded(work, folder_of(run.stored), Budget.of(run.plain["dispatch"]))


@contextmanager
def _existing(folder: Path) -> Iterator[None]:
    """Make the run's folder, as Hydra does for its jobs; what stays empty is removed again."""
    made = list(takewhile(lambda each: not each.exists(), (folder, *folder.parents)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"paths.outputs: {error.filename} cannot be created ({error.strerror}); use another"
            " folder."
        ) from error
    try:
        yield
    finally:
        remove_empty(*made)
