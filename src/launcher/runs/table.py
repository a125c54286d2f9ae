"""A table in text with one line per row, for any number of rows."""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size

from launcher.rundir.history import encodable

GAP = 2
"""Columns between two cells."""
CODES = {"bold": 1, "red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}
"""ANSI's codes of styles."""


@dataclass
class Table:
    """A table of text.

    Args:
        headings: the first line.
        rows: the cells of each row.
        right: the columns that are aligned to the right.
        shrinks: columns that are cut if the table is too wide, in this order.
        styles: the style of a cell, by row and column.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[int] = frozenset()
    shrinks: Sequence[int] = ()
    styles: dict[tuple[int, int], str] = field(default_factory=dict)

    def lines(self, width: int | None = None, colored: bool = False) -> Iterator[str]:
        """Yield the heading and the rows, cut to `width` columns unless it is None."""
        columns = [_printable(column) for column in zip(self.headings, *self.rows, strict=True)]
        widths = [_width(column) for column in columns]
        if width is not None:
            widths = self._fitting(widths, width)
        fitted = [
            _fitted(column, room, index in self.right)
            for index, (column, room) in enumerate(zip(columns, widths, strict=True))
        ]
        bold = {(-1, column): "bold" for column in range(len(widths))}
        styles = bold | self.styles if colored else {}
        for index, row in enumerate(zip(*fitted, strict=True), -1):
            cells = (
                [_styled(cell, styles.get((index, column), "")) for column, cell in enumerate(row)]
                if styles
                else row
            )
            line = (" " * GAP).join(cells).rstrip()
            yield (
                line
                if width is None or colored
                else set_cell_size(line, min(cell_len(line), width))
            )

    def _fitting(self, widths: list[int], width: int) -> list[int]:
        widths = list(widths)
        for column in self.shrinks:
            excess = sum(widths) + GAP * (len(widths) - 1) - width
            widths[column] = max(1, widths[column] - max(0, excess))
        return widths

    def print(self) -> None:
        """Print it, in a terminal in colours and no wider than that."""
        for line in self.lines(terminal_width(), is_colored()):
            print(line)


def is_colored() -> bool:
    """Return whether standard output is a terminal that shows colours."""
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") not in ("dumb", "unknown")
    )


def terminal_width() -> int | None:
    """Return the width in columns, or None if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _printable(column: Sequence[str]) -> Sequence[str]:
    if "".join(column).isprintable():
        return column
    return [
        "".join(character if character.isprintable() else " " for character in text)
        for text in column
    ]


def _width(column: Sequence[str]) -> int:
    return max(map(len if "".join(column).isascii() else cell_len, column))


def _fitted(column: Sequence[str], room: int, right: bool) -> list[str]:
    if "".join(column).isascii() and max(map(len, column)) <= room:
        return [text.rjust(room) if right else text.ljust(room) for text in column]
    end = "…" if encodable("…", sys.stdout) else "."
    return [_fitted_cell(text, room, right, end) for text in column]


def _fitted_cell(text: str, room: int, right: bool, end: str) -> str:
    length = cell_len(text)
    if length > room:
        return set_cell_size(text, room - 1) + end
    return " " * (room - length) + text if right else text + " " * (room - length)


def _styled(text: str, style: str) -> str:
    code = CODES.get(style)
    return text if code is None else f"\x1b[{code}m{text}\x1b[0m"
