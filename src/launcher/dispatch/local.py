"""dispatch=local: here and now."""

from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from launcher.types import PositiveInt


class LocalDispatch:
    """
    Args:
        nproc: ranks on this machine.
    """

    def __init__(self, nproc: PositiveInt = 1):
        self.nproc = nproc

    def run(self, config: DictConfig) -> Any:
        return instantiate(config.job).run(config)
