"""Standard output for short tables, whose cells are wrapped: they are rich's.

A table with a line for each of many rows is a `launcher.runs.table.Table`: rich takes 8 s and
180 MB for a listing of 10,000 runs, `Table` 3 s and 100 MB, and rich leaves out the columns that
it may cut where a terminal is narrow.
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
    """Standard output. Into a pipe a row is a line: nothing is wrapped or cut there."""

    def __init__(self) -> None:
        super().__init__(highlight=False, width=None if sys.stdout.isatty() else 10_000)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """The parts of a text, without the colours that it brings along."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError  # `main` handles it; rich would exit with 1


def grid(*headings: str, right: Collection[str] = ()) -> Table:
    """A table without lines, whose cells are wrapped.

    Args:
        headings: none: the table has no heading.
        right: the headings of the columns that are aligned to the right.
    """
    result = Table(box=None, pad_edge=False, show_header=bool(headings), header_style="bold")
    for heading in headings:
        result.add_column(
            Text(heading), justify="right" if heading in right else "left", overflow="fold"
        )
    return result
