"""Show the table of runs live in the terminal, the runs at work first; Ctrl-C ends it."""

import argparse
import shutil
import signal
import sys
import time
from typing import NoReturn

from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser
from launcher.process.plural import plural
from launcher.process.printable import printable, raw
from launcher.process.text_table import is_colored, is_live_terminal
from launcher.runs.filters import no_runs, sort
from launcher.runs.look.listing import add_selection, print_runs, select_runs, table
from launcher.runs.stored_run import StoredRun, count_states

ORDER = ("running", "queued", "preempted", "stale")
"""States in the order in which they are shown; the others follow, the newest first."""


def add_arguments(parser: Parser) -> None:
    add_selection(parser)
    parser.argument("--every", "SECONDS", "default: 5", type=float, default=5.0)


def run(arguments: argparse.Namespace) -> int:
    if not 0.1 <= arguments.every <= 3600:
        raise ConfigError(f"--every {arguments.every:g}: should be 0.1 to 3600 seconds.")
    # A mistake is reported before the screen is cleared.
    runs, columns = read_runs(arguments)
    if is_live_terminal():
        _live(arguments)
    print_runs(arguments, runs, columns)
    return 0


def _live(arguments: argparse.Namespace) -> NoReturn:
    """Draw the table until Ctrl-C or SIGTERM ends it."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    # Leaving through `sys.exit` restores the terminal.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    # The cells of the table are printable already.
    console = Console(file=raw(sys.stdout), highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            lines = screen(arguments, *shutil.get_terminal_size())
            text = Text.from_ansi("\n".join(lines), no_wrap=True, overflow="crop")
            live.update(text, refresh=True)
            time.sleep(arguments.every)


def screen(arguments: argparse.Namespace, width: int, height: int) -> list[str]:
    """Return a heading, the runs that there is room for, and how many are left."""
    runs, columns = read_runs(arguments)
    if not runs:
        return [printable(no_runs(arguments.words, arguments.outputs))[:width]]
    heading = f"{time.strftime('%H:%M:%S')}  {plural(len(runs), 'run')}: {count_states(runs)}"
    lines = [heading[:width]]
    shown = runs[: max(1, height - 3)]
    lines += table(shown, time.time(), width, columns).lines(width, is_colored())
    left = len(runs) - len(shown)
    if left:
        lines.append(f"... and {left:,} more"[:width])
    return lines


def read_runs(arguments: argparse.Namespace) -> tuple[list[StoredRun], list[str]]:
    """Read the selected runs, in their order on the screen, and the columns."""
    runs, columns = select_runs(arguments)
    if arguments.sort:
        return sort(runs, arguments.sort, arguments.reverse), columns
    runs.reverse()
    runs.sort(key=lambda run: ORDER.index(run.state) if run.state in ORDER else len(ORDER))
    return runs[::-1] if arguments.reverse else runs, columns
