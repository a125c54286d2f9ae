"""Arguments of the commands, for argparse."""

import argparse
from pathlib import Path
from typing import Any, NoReturn

from launcher.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one message, without the usage text."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help.")

    def argument(self, names: str, metavar: str, help: str, **settings: Any) -> None:
        """Add an argument or an option, which may have a short name: `-o --output`."""
        self.add_argument(*names.split(), metavar=metavar, help=help, **settings)

    def flag(self, name: str, help: str) -> None:
        self.add_argument(name, action="store_true", help=help)


def path_argument(text: str) -> Path:
    """Return the path in an argument. `Path("")` would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("should be a path; a variable of the shell may be unset")
    return Path(text)
