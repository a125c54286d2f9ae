"""`--help`, without importing Hydra, which takes half a second.

Its general text is conf/hydra/help/launcher.yaml.
"""

import shutil
import string
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml

from launcher.config.options import groups, installed, main_folder, own_folder
from launcher.errors import ConfigError


def help_text(config_dir: str | None = None) -> str:
    """The general help, which also lists the groups of the user's configuration folder."""
    folders = folders_of(config_dir)
    file = folders[0] / "hydra" / "help" / "launcher.yaml"
    template = yaml.safe_load(file.read_text(encoding="utf-8"))["template"]
    lines = [f"{group}: {', '.join(options)}" for group, options in groups(folders).items()]
    return string.Template(template).substitute(APP_CONFIG_GROUPS="\n".join(lines) + "\n")


def folders_of(config_dir: str | None) -> list[Traversable]:
    config_folder = Path(config_dir) if config_dir else own_folder()
    others = [folder for folder in installed().values() if folder is not None]
    return [
        main_folder(),
        *([config_folder] if config_folder is not None and config_folder.is_dir() else []),
        *others,
    ]


def print_help(argv: Sequence[str] | None = None) -> None:
    """Print the help for a command line that requests it.

    Raises:
        SystemExit: with code 2, for a topic that does not exist.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd")
    known, rest = parser.parse_known_args(arguments)
    asked = next((index for index, word in enumerate(rest) if word in ("-h", "--help")), 0)
    topics = [word for word in rest[asked + 1 :] if not word.startswith("-")]
    if not topics:
        print(help_text(known.config_dir), end="")
        return
    from launcher.cli.topics import topic_text

    try:
        width = min(shutil.get_terminal_size().columns, 120)
        texts = [
            topic_text(topic, folders_of(known.config_dir), max(width, 40)) for topic in topics
        ]
    except ConfigError as error:
        print("\n".join(error.messages), file=sys.stderr)
        raise SystemExit(2) from None
    print("\n".join(texts), end="")
