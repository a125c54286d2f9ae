"""`--cfg`: print the composed configuration, as Hydra prints it, and then its errors."""

import sys
from argparse import Namespace
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from launcher.config.compose.composer import Command
from launcher.errors import ConfigError


def show(words: Command, arguments: Namespace) -> None:
    """Print the configuration of a command."""
    # The interpolations ${hydra:...} read it.
    HydraConfig.instance().cfg = words.config()  # type: ignore[assignment]
    config = words.config()
    package = None if arguments.package == "_global_" else arguments.package
    if arguments.resolve and OmegaConf.is_config(node := _select(config, package)):
        # Before the part is cut out, since the run's name needs Hydra's node.
        OmegaConf.resolve(node)
    node = _select(_part(config, arguments.cfg), package)
    if node is None:
        raise ConfigError(f"--package={package}: the configuration has no such key.")
    if not OmegaConf.is_config(node):
        print(node)
    else:
        if package is not None:
            print(f"# @package {package}")
        sys.stdout.write(OmegaConf.to_yaml(node))
    sys.stdout.flush()
    words.check(words.config())


def _select(config: DictConfig, package: str | None) -> Any:
    return config if package is None else OmegaConf.select(config, package)


def _part(config: DictConfig, which: str) -> DictConfig:
    with open_dict(config), open_dict(config.hydra):
        if which == "job":
            config.pop("hydra")
        elif which == "hydra":
            for key in [key for key in config if key != "hydra"]:
                config.pop(key)
            for key in ("hydra_help", "help"):
                del config.hydra[key]
    return config
