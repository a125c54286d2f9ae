"""Hydra runs the command: launchers and sweepers of other packages, and flags that only it has.

Each job is the same as by Launcher's own path.
"""

import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from launcher.config import plain_yaml
from launcher.config.compose.overrides import typed_keys
from launcher.config.compose.project import project_defaults, reject_stored
from launcher.config.compose.session import MISSING_FOLDER, VERSION, first_line
from launcher.config.construct import without_hydra_whitelist
from launcher.config.identity.lookup import RunIndex
from launcher.config.omegaconf_nodes import to_plain
from launcher.config.options import config_path
from launcher.config.run_config import check
from launcher.config.schema.validate import HYDRA_KEYS
from launcher.config.tree import get
from launcher.dispatch.start import rejection, start_run
from launcher.errors import ConfigError
from launcher.process.files import remove_empty
from launcher.rundir.folder import RunFolder


def enter(overrides: Sequence[str], arguments: Namespace) -> None:
    """Let Hydra run the command with these overrides and the command's flags."""
    if arguments.config_path:
        _check_whole(arguments.config_path, arguments.config_name, overrides)
    if arguments.config_dir:
        reject_stored("--config-dir", Path(arguments.config_dir), arguments.config_name)
    # Otherwise Hydra prints exceptions itself and exits with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # A folder of hydra.searchpath that does not exist is an error, see `schema.check_hydra`.
    warnings.filterwarnings("ignore", MISSING_FOLDER, UserWarning)
    # Overrides come first, since Hydra's parser does not accept `a=1 -m b=2`.
    sys.argv[1:] = [*overrides, *arguments.flags]
    with without_hydra_whitelist(), project_defaults(arguments.config_dir, typed_keys(overrides)):
        try:
            hydra.main(config_path=config_path(), config_name="config", **VERSION)(task)()
        except YAMLError as error:
            raise ConfigError(first_line(error)) from error


def _check_whole(path: str, name: str, overrides: Sequence[str]) -> None:
    """Reject a `--config-path` in which Hydra would find no configuration of Launcher.

    Hydra makes its own folder before a run is checked.
    """
    reject_stored("--config-path", Path(path), name)
    file = Path(path) / f"{name}.yaml"
    instead = "to add options of your own, use --config-dir"
    if not file.is_file():
        raise ConfigError(f"--config-path={path}: there is no {file}; {instead}=FOLDER.")
    if not os.path.isabs(path):
        way = f"write --config-path={os.path.abspath(path)}"
        raise ConfigError(f"--config-path={path}: Hydra looks for it among our files; {way}.")
    try:
        hydra_node = get(plain_yaml.load(file.read_bytes()), "hydra")
    except (YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {first_line(error)}") from error
    typed = {word.lstrip("+~").partition("=")[0] for word in overrides}
    for key, (allowed, way) in HYDRA_KEYS.items():
        if f"hydra.{key}" in typed:
            raise ConfigError(f"hydra.{key}: cannot be changed; {way}.")
        if None not in allowed and get(hydra_node, key) not in allowed:
            raise ConfigError(
                f"--config-path={path}: is not all of Launcher's configuration, whose place it"
                f" takes; {instead}={path}."
            )


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
