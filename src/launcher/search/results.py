"""The results of a search: the best parameters, printed and as files."""

import shlex
import sys
from collections.abc import Sequence
from typing import Any

import yaml

from launcher.config.compose.composer import NOT_IN_NAME, Composer
from launcher.config.compose.overrides import parse
from launcher.config.tree import nest
from launcher.process.files import replace_file
from launcher.process.text_table import terminal_width
from launcher.runs.trials import Trial, best_of, describe_trial
from launcher.search.display import MAX_ROWS, best_first, trial_table
from launcher.search.search import Search

RESULTS, PRESET = "optimization_results.yaml", "best.yaml"


def conclude(search: Search, composer: Composer) -> None:
    """Print and write the results, or raise a SystemExit if no trial has completed."""
    settings = search.settings
    counts: dict[str, int] = {}
    for trial in search.trials:
        status = trial.status(settings)
        counts[status] = counts.get(status, 0) + 1
    trial_table(search, best_first(search)[:MAX_ROWS], terminal_width()).print()
    more = len(search.trials) - MAX_ROWS
    print(
        f"{f'and {more} more; ' if more > 0 else ''}{search.folder}: {len(search.trials)} trials, "
        f"{', '.join(f'{count} {status}' for status, count in counts.items())}"
    )
    best = best_of(search.trials, settings)
    if not best:
        print("No trial has completed.", file=sys.stderr, flush=True)
        raise SystemExit(1)
    write_results(search, best, composer)
    for trial in best:
        print(
            f"Best: trial {trial.number}, {describe_trial(trial, search.settings)}, run {trial.run}"
        )
        print(f"  {shlex.join(f'{key}={value}' for key, value in trial.params.items())}")
    print(
        f"As a preset: cp {shlex.quote(str(search.folder / PRESET))} conf/experiment/<name>.yaml",
        flush=True,
    )


def write_results(search: Search, best: Sequence[Trial], composer: Composer) -> None:
    """Write `optimization_results.yaml`, as Hydra's Optuna sweeper does, and the best preset."""
    settings = search.settings
    solutions = [
        {"params": plain(trial.params), "values": trial.values(settings)} for trial in best
    ]
    results: dict[str, object] = {"name": "optuna"}
    if len(settings.objectives) == 1:
        results |= {
            "best_params": solutions[0]["params"],
            "best_value": best[0].values(settings)[0],
        }
    else:
        results["solutions"] = solutions
    replace_file(search.folder / RESULTS, yaml.safe_dump(results, sort_keys=False).encode())
    replace_file(search.folder / PRESET, preset(best[0], search, composer).encode())


def plain(params: dict[str, object]) -> dict[str, Any]:
    """Values as the command line's YAML reads them: the category `128` is a number."""
    return {
        key: yaml.safe_load(value) if isinstance(value, str) else value
        for key, value in params.items()
    }


def preset(trial: Trial, search: Search, composer: Composer) -> str:
    """The content of a file for `conf/experiment/` that trains the trial's run."""
    defaults: list[object] = []
    values: dict[str, Any] = {}
    for override in map(parse, search.overrides(trial.params)):
        key, value = override.key_or_group, override.value()
        if override.is_delete() or key.startswith(NOT_IN_NAME):
            continue
        if not composer.is_value(override):
            defaults.append(str(value) if key == "experiment" else {f"override /{key}": value})
        else:
            values[key] = value
    text = yaml.safe_dump({"defaults": [*defaults, "_self_"]} | nest(values), sort_keys=False)
    comment = (
        f"# {describe_trial(trial, search.settings)}: trial {trial.number} of {search.folder.name}"
    )
    return "\n".join(["# @package _global_", comment, text])
