"""Runs the job of a configuration in this process."""

import importlib

from launcher.config.construct import instantiate
from launcher.config.run_config import RunConfig
from launcher.dispatch import forced_exit
from launcher.process import deadline
from launcher.process.exits import exits_are_errors

IMPORTS = 120.0
"""Seconds that importing torch may take on a busy machine before the grace period of a signal
begins."""


def run_job(config: RunConfig) -> object:
    """Run the job of a configuration, and return its value."""
    deadline.progress(IMPORTS)
    # These import torch.
    importlib.import_module("launcher.train.build")
    from launcher.process import ranks

    forced_exit.arm(config.plain["dispatch"])
    with exits_are_errors():
        value = instantiate(config.plain["job"]).run(config)
    ranks.wait_for_readers()
    return value
