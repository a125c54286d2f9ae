"""`--help`, without importing Hydra, which takes half a second."""

import shutil
import string
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml

from launcher.config.options import groups, installed_folders, main_folder, own_folder


def help_text(folders: Sequence[Traversable]) -> str:
    """The general help, with the options of all groups in these folders."""
    file = folders[0] / "hydra" / "help" / "launcher.yaml"
    template = yaml.safe_load(file.read_text(encoding="utf-8"))["template"]
    lines = [f"{group}: {', '.join(options)}" for group, options in groups(folders).items()]
    return string.Template(template).substitute(APP_CONFIG_GROUPS="\n".join(lines) + "\n")


def folders_of(arguments: Sequence[str]) -> list[Traversable]:
    """Return the configuration folders of a command line: ours, the user's, and of packages."""
    typed = _flags().parse_known_args(arguments)[0].config_dir
    own = Path(typed) if typed else own_folder()
    present = [own] if own is not None and own.is_dir() else []
    return [main_folder(), *present, *installed_folders()]


def _flags() -> ArgumentParser:
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd", nargs="?")
    parser.add_argument("--config-name", "-cn", nargs="?")
    return parser


def print_help(argv: Sequence[str]) -> None:
    """Print the help for a command line that requests it."""
    folders, rest = folders_of(argv), _flags().parse_known_args(argv)[1]
    asked = next((index for index, word in enumerate(rest) if word in ("-h", "--help")), 0)
    topics = [word for word in rest[asked + 1 :] if not word.startswith("-")]
    if not topics:
        print(help_text(folders), end="")
        return
    from launcher.cli.topics import topic_text

    width = min(shutil.get_terminal_size().columns, 120)
    print("\n".join(topic_text(topic, folders, max(width, 40)) for topic in topics), end="")
