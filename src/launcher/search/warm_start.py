"""Make trials of completed runs on disk that fit a study, also runs started by hand."""

from collections.abc import Iterable
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from launcher.errors import ConfigError
from launcher.runs.find_runs import find_runs
from launcher.runs.stored_run import StoredRun
from launcher.runs.trials import Trial
from launcher.search.search import Search
from launcher.search.search_space import Space, bare, is_within


def add_known_runs(search: Search) -> int:
    """Add each run that the study does not have yet; return the number of runs that were added."""
    count = len(search.trials)
    number = max((trial.number for trial in search.trials), default=-1)
    known = {trial.run for trial in search.trials}
    for run in find_runs(search.outputs):
        if run.label in known or run.record.get("state") != "completed":
            continue
        params = params_of(run, search.space)
        if params is None:
            continue
        trial = Trial(number + 1, params, search.space, origin="known", run=run.label)
        if not _is_run_of(trial, search):
            continue
        trial.look_at(run, search.settings)
        if trial.status(search.settings) == "completed":
            number += 1
            search.record(trial)
            search.trials.append(trial)
    return len(search.trials) - count


def _is_run_of(trial: Trial, search: Search) -> bool:
    """Return whether the run is the run that the study would launch for these values."""
    try:
        return search.compose(search.overrides(trial.params), trial.number).run == trial.run
    except ConfigError:
        return False


def params_of(run: StoredRun, space: Space) -> dict[str, object] | None:
    """Return a run's values for the keys of the space, or None if one is outside its range."""
    params: dict[str, object] = {}
    for key, among in space.items():
        name = bare(key)
        text = run.choices.get(name, run.text(name))
        value = None if text is None else _nearest(text, among)
        if value is None or not is_within(value, among):
            return None
        params[key] = value
    return params


def _nearest(text: str, among: BaseDistribution) -> Any:
    """Return a value in the form that its range uses, or None if it cannot be in the range."""
    if isinstance(among, CategoricalDistribution):
        return _equal(text, [str(choice) for choice in among.choices])
    try:
        return int(text) if isinstance(among, IntDistribution) else float(text)
    except ValueError:
        return None


def _equal(text: str, choices: Iterable[str]) -> str | None:
    """Return the choice that equals this text, or the same number."""
    for choice in choices:
        if choice == text:
            return choice
        try:
            if float(choice) == float(text):
                return choice
        except ValueError:
            continue
    return None
