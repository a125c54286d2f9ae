"""Hydra runs the command: launchers and sweepers of other packages, and flags that only it has.

Each job is the same as by Launcher's own path.
"""

import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from launcher.config.compose.session import COMPOSITION_ERRORS, VERSION, first_line
from launcher.config.construct import without_hydra_whitelist
from launcher.config.containers import to_plain
from launcher.config.identity.lookup import RunIndex
from launcher.config.options import config_path
from launcher.config.run_config import check
from launcher.dispatch.start import rejection, start_run
from launcher.errors import ConfigError
from launcher.process.files import remove_empty
from launcher.rundir.folder import RunFolder


def enter(overrides: Sequence[str], arguments: Namespace) -> None:
    """Let Hydra run the command with these overrides and the command's flags."""
    # Otherwise Hydra prints exceptions itself and exits with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # A folder of hydra.searchpath that does not exist is an error, see `schema.check_hydra`.
    warnings.filterwarnings("ignore", r"provider=.*\n?.*is not available", UserWarning)
    # Overrides come first, since Hydra's parser does not accept `a=1 -m b=2`.
    sys.argv[1:] = [*overrides, *arguments.flags]
    with without_hydra_whitelist():
        try:
            hydra.main(config_path=config_path(), config_name="config", **VERSION)(task)()
        except COMPOSITION_ERRORS as error:
            if arguments.config_path and "Primary config" in str(error):
                message = (
                    f"--config-path={arguments.config_path}: there is no such folder of"
                    " configurations; to add options of your own, use --config-dir=FOLDER."
                )
            elif isinstance(error, YAMLError):
                message = first_line(error)
            else:
                raise
            raise ConfigError(message) from error


def task(config: DictConfig) -> object:
    """Run a job for Hydra; it is importable, so that Hydra's launchers can send it elsewhere."""
    node = OmegaConf.to_container(HydraConfig.get(), resolve=False)
    whole = OmegaConf.create({**to_plain(config), "hydra": node})
    # Hydra has made the folder.
    made = RunFolder(whole.run.dir).path
    try:
        run = check(whole, RunIndex())
    except ConfigError as error:
        raise rejection(error.messages) from None
    finally:
        remove_empty(made, *made.parents[:2])
    return start_run(run, lambda run, task: task(run))
