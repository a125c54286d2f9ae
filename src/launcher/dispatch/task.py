"""What Hydra runs for each job: validate, then hand the configuration to its dispatch."""

from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from launcher.config import schema
from launcher.dispatch.environment import join_ranks
from launcher.run import signals
from launcher.slurm.requeue import guarded


def task(config: DictConfig) -> Any:
    """
    Raises:
        ConfigError: the configuration is at fault; nothing was written.
        signals.Stop: a signal came before anything was begun, or ended the run.
    """
    if not signals.installed():  # sent elsewhere by a launcher of Hydra's, whose own handlers stand there
        signals.install()
    schema.validate(config)
    alone = not join_ranks()  # several ranks must leave together: they look once they can agree
    dispatch = instantiate(config.dispatch, _recursive_=False)

    def work() -> Any:
        if alone:
            signals.check()
        return dispatch.run(config)

    return work() if getattr(dispatch, "submits", False) else guarded(config, work)
