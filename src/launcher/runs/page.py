"""Standard output for tables of few rows. rich takes 0.1 s to import, and a millisecond for a row."""

import sys
from typing import NoReturn

from rich.console import Console


class Page(Console):
    """Standard output. Into a pipe a row is a line: nothing is wrapped or cut there."""

    def __init__(self) -> None:
        super().__init__(highlight=False, width=None if sys.stdout.isatty() else 10_000)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError  # for `main`, which handles it; rich would end with 1
