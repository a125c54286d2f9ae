"""The trials of a search as a table: live on a terminal, and at the end."""

import math
import shutil
from collections.abc import Sequence
from typing import Any, Self

from rich.text import Text

from launcher.config.schema.metric_direction import sort_best_first
from launcher.process.text_table import TextTable, headings_that_fit
from launcher.rundir.logs import console, is_live_terminal
from launcher.runs.format import number as short
from launcher.runs.look.listing import shorten_keys
from launcher.runs.trials import Trial
from launcher.search.search import Search

MAX_ROWS = 20
EXTRA_LINES = 4
"""Lines of a terminal that rows cannot use: heading, last message and the shell's output."""

STYLES = {
    "running": "green",
    "preempted": "yellow",
    "paused": "cyan",
    "pruned": "yellow",
    "failed": "red",
    "invalid": "red",
}


class Display:
    """Prints what happens in a search, on a terminal above a live table.

    Use it as a context manager; the table is erased at its end.
    """

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

    def say(self, line: str) -> None:
        if self._live is None:
            print(line, flush=True)
        else:
            console().print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, search: Search) -> None:
        """Redraw the table."""
        if self._live is None:
            return
        columns, lines = shutil.get_terminal_size()
        trials = active_first(search)[: max(1, min(MAX_ROWS, lines - EXTRA_LINES))]
        rows = trial_table(search, trials, columns).lines(columns, not console().no_color)
        self._live.update(Text.from_ansi("\n".join(rows), no_wrap=True), refresh=True)


def trial_table(search: Search, trials: Sequence[Trial], width: int | None) -> TextTable:
    """Make the table of trials.

    Columns that do not fit the width are left out: first run, rung and step, then parameters.
    """
    settings, rungs = search.settings, search.rungs
    params = list(dict.fromkeys(key for trial in search.trials for key in trial.params))
    states = [_state(trial, search) for trial in trials]
    columns = {
        "trial": [str(trial.number) for trial in trials],
        "state": states,
        "step": [str(trial.step) for trial in trials],
        "rung": [f"{sum(trial.step >= rung for rung in rungs)}/{len(rungs)}" for trial in trials],
    }
    if not rungs:
        del columns["rung"]
    for index, name in enumerate(settings.objectives):
        values = [trial.values(settings)[index] for trial in trials]
        columns[name] = ["-" if math.isnan(value) else short(value) for value in values]
    (headings,) = shorten_keys([dict.fromkeys(params, "")])
    for key, heading in zip(params, headings, strict=True):
        columns[heading] = [_param(trial.params.get(key, "-")) for trial in trials]
    columns["run"] = [trial.run or "-" for trial in trials]
    dropped = ["run", "rung", "step", *reversed(headings)]
    names = headings_that_fit(columns, dropped, width)
    right = {"trial", "step", "rung", *settings.objectives}
    return TextTable(
        headings=names,
        rows=list(zip(*(columns[name] for name in names), strict=True)),
        right=frozenset(index for index, name in enumerate(names) if name in right),
        shrinks=range(len(names) - 1, -1, -1),
        styles={(row, 1): STYLES[state] for row, state in enumerate(states) if state in STYLES},
    )


def _state(trial: Trial, search: Search) -> str:
    status = trial.status(search.settings)
    is_running = status == "open" and trial.number in search.runner.running()
    return search.runner.phase(trial.number) if is_running else status


def _param(value: object) -> str:
    return short(value) if isinstance(value, float) else str(value)


def best_first(search: Search) -> list[Trial]:
    """Sort the completed trials before the others, each with the best first."""
    settings = search.settings
    trials = sort_best_first(search.trials, lambda trial: trial.values(settings)[0], settings.mode)
    return sorted(trials, key=lambda trial: trial.status(settings) != "completed")


def active_first(search: Search) -> list[Trial]:
    active = search.runner.running()
    return sorted(best_first(search), key=lambda trial: trial.number not in active)
