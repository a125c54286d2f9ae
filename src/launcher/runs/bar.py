"""A progress bar on standard error, or nothing if that is not a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from launcher.process.printable import printable, raw


class Bar:
    """A bar of rich, or without one a bar that is not shown."""

    def __init__(self, progress: Any = None, task: Any = None):
        self._progress, self._task = progress, task

    def advance(self, text: str) -> None:
        """Count one more item, and show its description `text`."""
        if self._progress is not None:
            self._progress.update(self._task, advance=1, description=printable(text))

    def reach(self, count: int) -> None:
        """Show that so many are done."""
        if self._progress is not None:
            self._progress.update(self._task, completed=count)


@contextmanager
def bar(total: int, text: str = "") -> Iterator[Bar]:
    """Show a progress bar until the end of the context; `text` describes the first item."""
    if not sys.stderr.isatty():
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.table import Column

    console = Console(file=raw(sys.stderr))
    with Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        BarColumn(bar_width=max(4, console.width // 4)),
        TaskProgressColumn(),
        console=console,
        transient=True,
        expand=True,
        # Otherwise what is printed for a file or a pipe would be shown above the bar instead.
        redirect_stdout=sys.stdout.isatty(),
    ) as progress:
        yield Bar(progress, progress.add_task(printable(text), total=total))
