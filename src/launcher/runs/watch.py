"""Show the table of runs live in the terminal, the runs at work first; Ctrl-C ends it.

A refresh checks each run.json, and reads a record if it has changed or its run is not at its end.
"""

import argparse
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from launcher.errors import ConfigError
from launcher.process.printable import printable, raw
from launcher.rundir.folder import run_folders
from launcher.rundir.logs import is_live_terminal
from launcher.runs.filters import FILTER_HELP, check_keys, select, sort
from launcher.runs.find import ask_queue, uncollected
from launcher.runs.listing import table
from launcher.runs.stored_run import StoredRun
from launcher.runs.table import is_colored, terminal_width

QUEUE_INTERVAL = 15.0
"""Seconds between two questions to SLURM."""
ENDED = ("completed", "failed", "cancelled", "paused", "damaged")
FIRST = ("running", "queued", "preempted", "stale")
"""States in the order in which they are shown; the others follow, the latest change first."""
Stamp = tuple[int, int, int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="FILTER", help=FILTER_HELP)
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS", help="default: 2")
    parser.add_argument("--sort", metavar="KEY", help="as in list; default: runs at work first")
    parser.add_argument("--reverse", action="store_true", help="the largest value first")
    parser.add_argument("--columns", metavar="KEY,KEY", help="as in list")


def run(arguments: argparse.Namespace) -> int:
    if not 0.1 <= arguments.every <= 3600:
        raise ConfigError(f"--every {arguments.every:g}: should be 0.1 to 3600 seconds.")
    runs = WatchedRuns(arguments.outputs, arguments.words, arguments.sort, arguments.reverse)
    keys = [key.strip() for key in (arguments.columns or "").split(",") if key.strip()]
    runs.refresh()
    check_keys(runs.selected, keys, "--columns=")
    if not is_live_terminal():
        if not runs.selected:
            print(runs.heading(), file=sys.stderr)
            return 0
        width = terminal_width()
        table(runs.selected, time.time(), width, keys, arguments.sort or "").print()
        return 0
    _live(runs, keys, arguments.sort or "", arguments.every)


def _live(runs: "WatchedRuns", keys: Sequence[str], sorted_by: str, every: float) -> NoReturn:
    """Draw the table until an exception ends it: Ctrl-C, or SIGTERM."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    # The cells of the table are printable already.
    console = Console(file=raw(sys.stdout), highlight=False)
    with _ending_at_sigterm(), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            began = time.monotonic()
            size = shutil.get_terminal_size()
            lines = screen(runs, keys, sorted_by, size.columns, size.lines)
            text = Text.from_ansi("\n".join(lines), no_wrap=True, overflow="crop")
            live.update(text, refresh=True)
            time.sleep(max(0.05, every - (time.monotonic() - began)))
            runs.refresh()


@contextmanager
def _ending_at_sigterm() -> Iterator[None]:
    """SIGTERM is an exception within this context, so that the terminal is restored."""

    def end(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def screen(
    runs: "WatchedRuns", keys: Sequence[str], sorted_by: str, width: int, height: int
) -> list[str]:
    """Return the lines of the screen.

    They are a heading, the table of as many runs as there is room for, and how many are left out.
    """
    room = max(1, height - 3)
    shown = runs.selected[:room]
    lines = [runs.heading()[:width]]
    if shown:
        rows = table(shown, time.time(), width, keys, sorted_by)
        lines += rows.lines(width, is_colored())
    if left := len(runs.selected) - len(shown):
        lines.append(f"... and {left:,} more"[:width])
    return lines


class WatchedRuns:
    """The selected runs of a folder, read again as they change.

    Args:
        outputs: the folder.
        words: of the filter.
        sorted_by: a key; None: runs at work first, then the latest change.
        reverse: the largest value first.
    """

    def __init__(
        self, outputs: Path, words: Sequence[str], sorted_by: str | None, reverse: bool = False
    ):
        self.outputs, self.words, self.sorted_by, self.reverse = outputs, words, sorted_by, reverse
        self.selected: list[StoredRun] = []
        self._known: dict[str, tuple[Stamp | None, StoredRun]] = {}
        self._asked = float("-inf")

    def refresh(self) -> None:
        """Look at all runs again.

        Raises:
            ConfigError: the filter has a mistake.
        """
        with uncollected():
            folders = list(run_folders(str(self.outputs)))
            self._known = {folder: self._current(folder) for folder in folders}
            runs = [run for _, run in self._known.values()]
            if time.monotonic() - self._asked > QUEUE_INTERVAL:
                ask_queue(runs)
                self._asked = time.monotonic()
            selected = select(runs, self.words)
            if self.sorted_by:
                self.selected = sort(selected, self.sorted_by, self.reverse)
            else:
                self.selected = sorted(selected, key=self._rank, reverse=self.reverse)

    def _current(self, folder: str) -> tuple[Stamp | None, StoredRun]:
        stamp, known = _stamp(f"{folder}/run.json"), self._known.get(folder)
        if known is None:
            return stamp, StoredRun.read(folder)
        before, run = known
        if stamp != before:
            new = StoredRun.read(folder)
            return stamp, replace(new, job=run.job, queue_known=run.queue_known)
        # A copy has no cached state: a process or a job may have ended without a record.
        return stamp, run if run.state in ENDED else replace(run)

    def _rank(self, run: StoredRun) -> tuple[int, int]:
        stamp = self._known[run.path][0]
        state = FIRST.index(run.state) if run.state in FIRST else len(FIRST)
        return state, -(stamp[0] if stamp is not None else 0)

    def heading(self) -> str:
        """Return the number of runs in each state, and when that was read."""
        counts = Counter(run.state for run in self.selected)
        states = ", ".join(f"{count:,} {state}" for state, count in counts.most_common())
        count = len(self.selected)
        of = f" that match {printable(' '.join(self.words))}" if self.words else ""
        if not count:
            return f"There are no runs in {self.outputs}{of}."
        return f"{time.strftime('%H:%M:%S')}  {count:,} run{'s' * (count > 1)}{of}: {states}"


def _stamp(path: str) -> Stamp | None:
    """Return modification time, size and inode of a file, which each replacement changes.

    Returns:
        None if it is gone.
    """
    try:
        status: Any = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
