"""Runs the job of a configuration in this process."""

from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from launcher.run.exits import exits_are_errors


def run_job(config: DictConfig) -> Any:
    """
    Returns:
        What the job returns.
    Raises:
        signals.Stop: a signal ended it.
    """
    with exits_are_errors():
        return instantiate(config.job).run(config)
