"""Lines of what happens, and on a terminal a live table below them."""

import shutil
from typing import Any, Self

from rich.text import Text

from launcher.process.text_table import TextTable
from launcher.rundir.logs import console, is_live_terminal

MAX_ROWS = 20
EXTRA_LINES = 4
"""Lines of a terminal that rows cannot use: the heading, the last message and the shell's
output."""


class LiveTable:
    """Use it as a context manager; the table is erased at its end."""

    def __init__(self) -> None:
        self._live: Any = None

    def __enter__(self) -> Self:
        if is_live_terminal():
            from rich.live import Live

            self._live = Live(console=console(), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def is_live(self) -> bool:
        """Return whether a table is visible. Otherwise it need not be made."""
        return self._live is not None

    @property
    def rows(self) -> int:
        """The number of rows that fit."""
        return max(1, min(MAX_ROWS, shutil.get_terminal_size().lines - EXTRA_LINES))

    def say(self, line: str) -> None:
        if self._live is None:
            print(line, flush=True)
        else:
            console().print(line, markup=False, highlight=False, soft_wrap=True)

    def draw(self, table: TextTable, heading: str = "") -> None:
        """Replace the table."""
        rows = table.lines(shutil.get_terminal_size().columns, not console().no_color)
        lines = [*([heading] if heading else []), *rows]
        self._live.update(Text.from_ansi("\n".join(lines), no_wrap=True), refresh=True)
