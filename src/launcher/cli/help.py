"""`--help`, without importing Hydra, which takes half a second."""

import shutil
import string
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml
from yaml import YAMLError

from launcher.config.options import (
    find_installed,
    groups,
    main_folder,
    own_folder,
    resolve_searchpath,
)
from launcher.config.tree import get

SEARCHPATH = "hydra.searchpath="


def help_text(folders: Sequence[Traversable]) -> str:
    """The general help, with the options of all groups in these folders."""
    file = folders[0] / "hydra" / "help" / "launcher.yaml"
    template = yaml.safe_load(file.read_text(encoding="utf-8"))["template"]
    lines = [f"{group}: {', '.join(options)}" for group, options in groups(folders).items()]
    return string.Template(template).substitute(APP_CONFIG_GROUPS="\n".join(lines) + "\n")


def folders_of(arguments: Sequence[str]) -> list[Traversable]:
    """Return the configuration folders of a command line: ours, the user's, and of packages."""
    known, words = _flags().parse_known_args(arguments)
    own = Path(known.config_dir) if known.config_dir else own_folder()
    typed = [word for word in words if word.startswith(SEARCHPATH)]
    named = own / f"{known.config_name}.yaml" if own and known.config_name else None
    paths: object = []
    # What cannot be read, a run reports.
    with suppress(OSError, ValueError, YAMLError):
        if typed:
            paths = yaml.safe_load(typed[-1].removeprefix(SEARCHPATH))
        elif named is not None:
            paths = get(yaml.safe_load(named.read_text(encoding="utf-8")), "hydra.searchpath")
    others = [*resolve_searchpath(paths), *find_installed().values()]
    return [
        main_folder(),
        *([own] if own is not None and own.is_dir() else []),
        *(folder for folder in others if folder is not None),
    ]


def _flags() -> ArgumentParser:
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd", nargs="?")
    parser.add_argument("--config-name", "-cn", nargs="?")
    return parser


def print_help(argv: Sequence[str]) -> None:
    """Print the help for a command line that requests it."""
    arguments = list(argv)
    folders, (_, rest) = folders_of(arguments), _flags().parse_known_args(arguments)
    asked = next((index for index, word in enumerate(rest) if word in ("-h", "--help")), 0)
    topics = [word for word in rest[asked + 1 :] if not word.startswith(("-", SEARCHPATH))]
    if not topics:
        print(help_text(folders), end="")
        return
    from launcher.cli.topics import topic_text

    width = min(shutil.get_terminal_size().columns, 120)
    print("\n".join(topic_text(topic, folders, max(width, 40)) for topic in topics), end="")
