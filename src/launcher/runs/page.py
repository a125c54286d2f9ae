"""Standard output for short tables. rich takes 0.1 s to import, and a millisecond for each row."""

import sys
from collections.abc import Iterator
from typing import NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

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
