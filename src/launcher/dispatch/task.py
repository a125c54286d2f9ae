"""What Hydra runs for each job: validate, then hand the configuration to its dispatch."""

from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from launcher import schema, signals


def task(config: DictConfig) -> Any:
    """
    Raises:
        ConfigError: the configuration is at fault; nothing was written.
        signals.Stop: a signal came before anything was begun, or ended the run.
    """
    schema.validate(config)
    signals.check()
    return instantiate(config.dispatch, _recursive_=False).run(config)
