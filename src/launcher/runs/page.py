"""Standard output for short tables with wrapped cells, by rich.

For a listing of 10,000 runs, rich takes 8 s and 180 MB, `launcher.runs.table.Table` 3 s and 100 MB.
On a narrow terminal, rich leaves out the columns that it may cut.
"""

import sys
from collections.abc import Collection, Iterator
from typing import NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from launcher.process.printable import printable


class StdoutConsole(Console):
    """Standard output. In a pipe a row is a line, and nothing is wrapped or cut."""

    def __init__(self) -> None:
        super().__init__(highlight=False, width=None if sys.stdout.isatty() else 10_000)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Return the parts of a text, without its own colours."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def on_broken_pipe(self) -> NoReturn:
        # `main` handles it, whereas rich would exit with 1.
        raise BrokenPipeError


def grid(*headings: str, right: Collection[str] = ()) -> Table:
    result = Table(box=None, pad_edge=False, show_header=bool(headings), header_style="bold")
    for heading in headings:
        result.add_column(
            Text(heading), justify="right" if heading in right else "left", overflow="fold"
        )
    return result
