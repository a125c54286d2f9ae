"""The results of a search: a table of its trials, and the best parameters."""

import math
import shlex
import sys
from collections import Counter
from typing import Any

import yaml

from launcher.config.schema.metric_direction import sort_best_first
from launcher.process.files import replace_file
from launcher.process.plural import plural
from launcher.process.text_table import TextTable
from launcher.runs.format import number as short
from launcher.runs.look.listing import shorten_keys
from launcher.runs.trials import Trial, best_of
from launcher.search.search import Search

RESULTS = "optimization_results.yaml"
MAX_ROWS = 20
STYLES = {
    "paused": "cyan",
    "pruned": "yellow",
    "failed": "red",
    "invalid": "red",
}


def conclude(search: Search) -> None:
    """Print and write the results, or raise a SystemExit if no trial has completed."""
    counts = Counter(trial.status for trial in search.trials)
    trial_table(search).print()
    hidden = len(search.trials) - MAX_ROWS
    more = f"and {hidden} more; " if hidden > 0 else ""
    states = ", ".join(f"{count} {status}" for status, count in counts.items())
    print(f"{more}{search.folder}: {plural(len(search.trials), 'trial')}, {states}")
    best = best_of(search.trials, search.settings)
    if best is None:
        print("No trial has completed.", file=sys.stderr, flush=True)
        raise SystemExit(1)
    write_results(search, best)
    print(f"Best: trial {best.number}, {best.describe()}, run {best.run}")
    params = shlex.join(f"{key}={value}" for key, value in best.params.items())
    print(f"  {params}", flush=True)


def trial_table(search: Search) -> TextTable:
    """Make the table of the best trials."""
    settings = search.settings
    rungs = search.rungs
    trials = best_first(search)[:MAX_ROWS]
    params = list(dict.fromkeys(key for trial in search.trials for key in trial.params))
    states = [trial.status for trial in trials]
    columns = {
        "trial": [str(trial.number) for trial in trials],
        "state": states,
        "step": [str(trial.step) for trial in trials],
    }
    if rungs:
        passed = [sum(trial.step >= rung for rung in rungs) for trial in trials]
        columns["rung"] = [f"{count}/{len(rungs)}" for count in passed]
    values = [trial.value for trial in trials]
    columns[settings.objective] = ["-" if math.isnan(value) else short(value) for value in values]
    numbers = len(columns)
    (headings,) = shorten_keys([dict.fromkeys(params, "")])
    for key, heading in zip(params, headings, strict=True):
        columns[heading] = [_param(trial.params.get(key, "-")) for trial in trials]
    columns["run"] = [trial.run or "-" for trial in trials]
    return TextTable(
        headings=[*columns],
        rows=list(zip(*columns.values(), strict=True)),
        right=frozenset({*range(numbers)} - {1}),
        shrinks=range(len(columns) - 1, -1, -1),
        styles={(row, 1): STYLES[state] for row, state in enumerate(states) if state in STYLES},
    )


def _param(value: object) -> str:
    return short(value) if isinstance(value, float) else str(value)


def best_first(search: Search) -> list[Trial]:
    """Sort the completed trials before the others, each with the best first."""
    settings = search.settings
    trials = sort_best_first(search.trials, lambda trial: trial.value, settings.mode)
    return sorted(trials, key=lambda trial: trial.status != "completed")


def write_results(search: Search, best: Trial) -> None:
    """Write `optimization_results.yaml`, as Hydra's Optuna sweeper does."""
    results = {
        "name": "optuna",
        "best_params": plain(best.params),
        "best_value": best.value,
    }
    replace_file(search.folder / RESULTS, yaml.safe_dump(results, sort_keys=False).encode())


def plain(params: dict[str, object]) -> dict[str, Any]:
    """Values as the command line's YAML reads them: the category `128` is a number."""
    return {
        key: yaml.safe_load(value) if isinstance(value, str) else value
        for key, value in params.items()
    }
