"""`--cfg`: print the composed configuration, as Hydra prints it, and then its errors."""

import sys
from argparse import Namespace
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from launcher.config.compose.composer import Command
from launcher.config.compose.resolve import resolve_part
from launcher.config.messages import to_override_text
from launcher.config.run_config import read
from launcher.config.secrets import escape
from launcher.config.tree import map_leaves
from launcher.errors import ConfigError

ABSENT = object()


def print_config(words: Command, arguments: Namespace) -> None:
    """Print the configuration of a command.

    Raises:
        ConfigError: with its errors. It is printed nevertheless, unless a value that was requested
            does not resolve.
    """
    # The interpolations ${hydra:...} read it.
    HydraConfig.instance().cfg = words.config()  # type: ignore[assignment]
    config = words.config()
    if arguments.resolve:
        config = _resolved(words, config)
    package = None if arguments.package == "_global_" else arguments.package
    try:
        node = _select(config, arguments.cfg, package)
    except OmegaConfBaseException as error:
        words.check(words.config())
        raise ConfigError(f"--package={package}: cannot be resolved: {error}") from error
    if node is ABSENT:
        raise ConfigError(f"--package={package}: the configuration has no such key.")
    if not OmegaConf.is_config(node):
        print(to_override_text(node))
    else:
        if package is not None:
            print(f"# @package {package}")
        sys.stdout.write(OmegaConf.to_yaml(node))
    sys.stdout.flush()
    words.check(words.config())


def _resolved(words: Command, config: DictConfig) -> DictConfig:
    """Return the configuration without interpolations."""
    run, issues = read(config)
    if issues:
        # All errors are reported, as at a start.
        words.check(words.config())
    of_run = {**run.plain["run"], "identity": None}
    trees = {**run.plain, "run": of_run, "hydra": resolve_part(config, "hydra")}

    def text(value: object, _: object) -> object:
        return escape(value)

    return OmegaConf.create({str(key): map_leaves(trees[str(key)], text) for key in config})


def _select(config: DictConfig, which: str, package: str | None) -> Any:
    """Return the value of a key, `???` if it is not set, or `ABSENT`."""
    if package is None:
        return _part(config, which)
    is_hydra = package.partition(".")[0] == "hydra"
    if which not in ("all", "hydra" if is_hydra else "job"):
        return ABSENT
    parent, _, name = package.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    # Unlike `name in node`, it has the keys whose value is missing.
    if isinstance(node, DictConfig) and name in node.keys():  # noqa: SIM118
        return "???" if OmegaConf.is_missing(node, name) else node[name]
    return OmegaConf.select(config, package, default=ABSENT)


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
