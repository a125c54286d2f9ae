"""`--help`, without importing Hydra, which takes half a second."""

import shutil
import string
from collections.abc import Sequence
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml

from launcher.cli.flags import read, with_own_folder
from launcher.config.options import groups, installed_folders, main_folder


def help_text(folders: Sequence[Traversable]) -> str:
    """The general help, with the options of all groups in these folders."""
    file = folders[0] / "hydra" / "help" / "launcher.yaml"
    template = yaml.safe_load(file.read_text(encoding="utf-8"))["template"]
    lines = [f"{group}: {', '.join(options)}" for group, options in groups(folders).items()]
    return string.Template(template).substitute(APP_CONFIG_GROUPS="\n".join(lines) + "\n")


def folders_of(config_dir: str | None) -> list[Traversable]:
    """Return the folders of options: ours, the user's, and the folders of packages."""
    own = [] if config_dir is None or not Path(config_dir).is_dir() else [Path(config_dir)]
    return [main_folder(), *own, *installed_folders()]


def print_help(argv: Sequence[str]) -> None:
    """Print the help for a command line that requests it."""
    arguments = read(with_own_folder(argv))
    folders = folders_of(arguments.config_dir)
    topics = [word for word in arguments.overrides if not word.startswith("hydra.")]
    if not topics:
        print(help_text(folders), end="")
        return
    from launcher.cli.topics import topic_text

    width = min(shutil.get_terminal_size().columns, 120)
    print("\n".join(topic_text(topic, folders, max(width, 40)) for topic in topics), end="")
