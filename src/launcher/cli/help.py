"""`--help`, without the half second that importing Hydra takes. The text is conf/hydra/help/launcher.yaml."""

import string
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml

from launcher.config.options import groups, main_folder


def help_text(config_dir: str | None = None) -> str:
    """The help, with the groups of the user's folder of configuration."""
    folders: list[Traversable] = [main_folder()]
    if config_dir and Path(config_dir).is_dir():
        folders.append(Path(config_dir))
    file = folders[0] / "hydra" / "help" / "launcher.yaml"
    template = yaml.safe_load(file.read_text(encoding="utf-8"))["template"]
    lines = [f"{group}: {', '.join(options)}" for group, options in groups(folders).items()]
    return string.Template(template).substitute(APP_CONFIG_GROUPS="\n".join(lines) + "\n")


def print_help(argv: Sequence[str] | None = None) -> None:
    """Print the help for a command line that asks for it."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd")
    known, _ = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    print(help_text(known.config_dir), end="")
