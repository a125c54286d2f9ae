"""Standard output for short tables. rich takes 0.1 s to import, and a millisecond for each row."""

import sys
from typing import NoReturn

from rich.console import Console


class Page(Console):
    """Standard output. Into a pipe a row is a line: nothing is wrapped or cut there."""

    def __init__(self) -> None:
        super().__init__(highlight=False, width=None if sys.stdout.isatty() else 10_000)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError  # `main` handles it; rich would exit with 1
