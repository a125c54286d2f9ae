"""Runs the job of a configuration in this process."""

import importlib

from omegaconf import DictConfig

from launcher.config.construct import instantiate
from launcher.dispatch import forced_exit
from launcher.process import deadline
from launcher.process.exits import exits_are_errors

IMPORTS = 120.0
"""Seconds that importing torch may take on a busy machine before the grace period of a signal
begins."""


def run_job(config: DictConfig) -> object:
    """Run the job of a configuration, and return its value."""
    deadline.progress(IMPORTS)
    # These import torch.
    importlib.import_module("launcher.train.build")
    from launcher.process import ranks

    forced_exit.arm(config.dispatch)
    with exits_are_errors():
        value = instantiate(config.job).run(config)
    ranks.wait_for_readers()
    return value
