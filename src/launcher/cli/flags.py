"""The flags of the command line: Hydra's, for which it has no public parser, and `-v`."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from launcher.config.options import own_folder
from launcher.process.argument_parser import Parser

VERBOSE = dict.fromkeys(("-v", "--verbose"), "hydra.verbose=true")
COMMANDS = ("run", "multirun", "cfg", "info", "shell_completion")
"""Flags that exclude each other."""
FOR_HYDRA = ("hydra_help", "info", "config_path", "shell_completion")
"""Flags that Hydra's own `main` serves."""


class FlagParser(Parser):
    """The parser of Hydra's flags."""

    def __init__(self) -> None:
        super().__init__(prog="python -m launcher", add_help=False)
        self.add_argument("overrides", nargs="*")
        switches = ("--help -h", "--hydra-help", "--resolve", "--run -r", "--multirun -m")
        for flags in (*switches, "--shell-completion -sc"):
            self.add_argument(*flags.split(), action="store_true")
        for flags in ("--package -p", "--config-path -cp", "--config-dir -cd"):
            self.add_argument(*flags.split())
        self.add_argument("--config-name", "-cn", default="config")
        self.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
        parts = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
        self.add_argument("--info", "-i", nargs="?", const="all", choices=parts)

    def error(self, message: str) -> NoReturn:
        typed = message.partition("unrecognized arguments: --")[2]
        is_override = "." in typed or "=" in typed
        super().error(f"{message}; an override has no dashes: {typed}" if is_override else message)


def read(argv: Sequence[str]) -> Namespace:
    """Parse the flags, which may be anywhere among the overrides.

    Returns:
        The flags and the overrides, `flags`: the other arguments as they are typed, and
            `for_hydra`: whether Hydra's own `main` serves the command.
    """
    if "--version" in argv:
        print(f"torch-launcher {version('torch-launcher')}")
        raise SystemExit(0)
    words = [VERBOSE.get(word, word) for word in argv]
    parser = FlagParser()
    arguments = parser.parse_intermixed_args(words)
    commands = [name for name in COMMANDS if getattr(arguments, name)]
    if len(commands) > 1:
        parser.error(f"--{' and --'.join(commands)} exclude each other")
    if arguments.shell_completion and sys.argv[0].endswith(".py"):
        parser.error(
            "--shell-completion is for the command launcher; use"
            ' eval "$(launcher -sc install=bash)"'
        )
    if arguments.resolve and not (arguments.cfg or arguments.help):
        parser.error("--resolve needs --cfg job")
    if arguments.config_dir == "":
        parser.error("--config-dir is empty: a variable of the shell may be unset")
    for override in arguments.overrides:
        words.remove(override)
    arguments.flags = words
    arguments.for_hydra = any(getattr(arguments, name) for name in FOR_HYDRA)
    return arguments


def with_own_folder(argv: Sequence[str]) -> list[str]:
    """Return the command line with `--config-dir conf`, if there is such a folder and no other."""
    is_named = any(word.startswith(("--config-dir", "-cd")) for word in argv)
    folder = None if is_named else own_folder()
    return [*argv, *([] if folder is None else ["--config-dir", str(folder)])]
