"""Standard output for short tables with wrapped cells, by rich.

A table with a line for each of many rows is a `launcher.runs.table.Table`. Rich takes 8 s and 180
MB for a listing of 10,000 runs, `Table` takes 3 s and 100 MB, and rich leaves out the columns that
it may cut if a terminal is narrow.
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
    """A table without lines, whose cells are wrapped.

    Args:
        headings: headings of the columns. If there are none, the table has no heading.
        right: the headings of the columns that are aligned to the right.
    """
    result = Table(box=None, pad_edge=False, show_header=bool(headings), header_style="bold")
    for heading in headings:
        result.add_column(
            Text(heading), justify="right" if heading in right else "left", overflow="fold"
        )
    return result
