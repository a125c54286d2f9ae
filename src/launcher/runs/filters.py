"""Select runs by filters, and look up the value of a key for filters, `--sort` and `--columns`."""

import math
import operator
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from launcher.config import plain_yaml
from launcher.config.messages import hint
from launcher.config.options import COLLECTIONS
from launcher.errors import ConfigError
from launcher.process.files import expand
from launcher.runs.stored_run import StoredRun

Item = TypeVar("Item")
FIELDS: dict[str, Callable[[StoredRun], object]] = {
    "id": lambda run: run.id,
    "name": lambda run: run.name,
    "state": lambda run: run.state,
    "step": lambda run: run.record.get("step"),
    "loss": lambda run: run.record.get("loss"),
    "best": lambda run: run.best.get("value"),
    "attempts": lambda run: len(run.attempts),
    "started": lambda run: run.started or None,
    "node": lambda run: run.node,
    "job": lambda run: run.job_id,
    "user": lambda run: " ".join(run.users) or None,
    "sweep": lambda run: run.settings.get("run.sweep"),
    "note": lambda run: run.written.text or None,
    "label": lambda run: " ".join(run.written.labels) or None,
    "hooks": lambda run: parts_of(run, "hooks"),
    "tracker": lambda run: parts_of(run, "tracker"),
}
"""Fields of run.json, by their names in a filter."""
STATES = (
    "new", "queued", "running", "preempted", "paused", "completed", "failed", "cancelled", "stale",
    "damaged", "unsupported",
)  # fmt: skip
ORDERED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
CONDITION = re.compile(r"([^=<>!]+)(<=|>=|!=|=|<|>)(.*)", re.DOTALL)
FILTER_HELP = (
    "optimizer.lr=1e-3, val/loss<2, model=mlp, state=running, part of a name, the beginning of an"
    " id, or a run's folder"
)


def parts_of(run: StoredRun, group: str) -> str | None:
    """Return the names of a run's hooks or trackers, which are not among its choices."""
    parts = [key.split(".") for key in run.settings]
    names = [path[1] for path in parts if path[0] == group and path[2:] == ["_target_"]]
    return (" ".join(names) or "none") if run.settings else None


def value_of(run: StoredRun, key: str) -> Any:
    """Return a run's value of a key, or None.

    It is a field of run.json, the option of a config group, a configuration value, or the newest
    value of a metric, in this order.
    """
    if key in FIELDS:
        return FIELDS[key](run)
    if key in run.choices:
        return run.choices[key]
    if key in run.settings:
        return run.text(key)
    return run.metrics[key].value if key in run.metrics else None


def check_keys(runs: Sequence[StoredRun], keys: Sequence[str], option: str = "") -> None:
    """Check that each key has a value in some run; `option` is the option that named them."""
    unknown = [
        key
        for key in dict.fromkeys(keys)
        if key not in FIELDS and runs and all(value_of(run, key) is None for run in runs)
    ]
    if unknown:
        all_keys = sorted(
            {*FIELDS, *(key for run in runs for key in (*run.choices, *run.settings, *run.metrics))}
        )
        raise ConfigError(
            *(f"'{option}{key}': no run has this key{hint(key, all_keys)}" for key in unknown)
        )


def is_condition(word: str) -> bool:
    return CONDITION.fullmatch(word) is not None


def select(runs: list[StoredRun], words: Sequence[str]) -> list[StoredRun]:
    """Select the runs that match all words.

    `key=value` compares as numbers if both are numbers (1e-3 is 0.001), and so do `!=`, `<`, `<=`,
    `>` and `>=`. Any other word is part of a name, begins an id, or is name/id or a run's folder.
    """
    conditions = [match.groups() for word in words if (match := CONDITION.fullmatch(word))]
    check_keys(runs, [key for key, _, _ in conditions])
    for condition in conditions:
        check_condition(*condition)
    names = [word for word in words if not is_condition(word)]
    for word in names:
        check_word(word)
        if runs and not any(is_named(run, word) for run in runs):
            near = hint(word, {run.name for run in runs} | {run.id for run in runs})
            folder = expand(word)
            if os.path.isfile(folder / "run.json"):
                near = f"; it is one of other runs, which --outputs={folder.parent.parent} names."
            raise ConfigError(
                f"'{word}': no run has this in its name, at the beginning of its id, or as its"
                f" folder{near}"
            )
    return [
        run
        for run in runs
        if all(is_named(run, word) for word in names)
        and all(
            holds(value_to_compare(run, key, value), sign, value) for key, sign, value in conditions
        )
    ]


def select_some(runs: list[StoredRun], words: Sequence[str], outputs: Path) -> list[StoredRun]:
    """Select the runs of a folder that match all words, at least one."""
    chosen = select(runs, words)
    if chosen:
        return chosen
    raise ConfigError(no_runs(words, outputs))


def no_runs(words: Sequence[str], outputs: Path) -> str:
    condition = f" that match {' '.join(words)}" if words else ""
    typed = [word.partition("=")[2] for word in words if word.startswith("paths.outputs=")]
    instead = f" Another folder of runs is --outputs {typed[0]}." if typed else ""
    return f"There are no runs in {outputs}{condition}.{instead}"


def check_condition(key: str, sign: str, value: str) -> None:
    if sign in ORDERED and number(value) is None:
        raise ConfigError(f"'{key}{sign}{value}': {value!r} is not a number; e.g. {key}{sign}0.1.")
    if key == "state" and value not in STATES:
        near = hint(value, STATES, f"{key}{sign}{{}}")
        raise ConfigError(
            f"'{key}{sign}{value}': a run is {', '.join(STATES[:-1])} or {STATES[-1]}{near}"
        )


def check_word(word: str) -> None:
    if not word:
        raise ConfigError(
            "'': names no run; a variable of the shell may be unset. Give an id or a name."
        )


def is_named(run: StoredRun, word: str) -> bool:
    """Return whether a word is part of a run's name, or begins its id, or is its folder."""
    if word in run.name or run.id.startswith(word):
        return True
    # A slash is in no name and no id.
    is_folder = "/" in word and os.path.realpath(expand(word)) == os.path.realpath(run.path)
    return is_folder or word == run.label


def value_to_compare(run: StoredRun, key: str, value: str) -> object:
    """Return the value that a condition compares. `job=198` means all tasks of the array 198."""
    actual = value_of(run, key)
    if key in ("label", "user", *COLLECTIONS) and actual is not None:
        # A name is one of several, and a list has all.
        names = actual.removesuffix("none").split()
        wanted = value.strip("[]").split(",")
        is_equal = set(names) == set(filter(None, wanted)) if value[:1] == "[" else value in names
        return value if is_equal else actual
    if key == "job" and actual and "_" not in value:
        return actual.partition("_")[0]
    return actual


def holds(left: object, sign: str, right: str) -> bool:
    """Return whether a run's value fulfils a condition. A missing value fulfils only `!=`."""
    if sign not in ORDERED:
        return (left is not None and is_same(str(left), right)) == (sign == "=")
    one = number(left)
    other = number(right)
    return one is not None and other is not None and bool(ORDERED[sign](one, other))


def is_same(left: str, right: str) -> bool:
    """Return whether two values are equal as numbers, as YAML, or as text."""
    one = number(left)
    other = number(right)
    if one is not None and other is not None:
        return one == other
    try:
        return bool(plain_yaml.load(left) == plain_yaml.load(right))
    except yaml.YAMLError:
        return left == right


def number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def sort(runs: list[StoredRun], key: str, reverse: bool = False) -> list[StoredRun]:
    check_keys(runs, [key], "--sort=")
    return sort_by_value(runs, lambda run: value_of(run, key), reverse)


def sort_by_value(
    items: Sequence[Item], value: Callable[[Item], object], reverse: bool = False
) -> list[Item]:
    """Sort by a value: numbers, then text, then items without a value or with NaN."""
    ranks = [(rank(value(item)), item) for item in items]
    present = [(place, item) for place, item in ranks if place is not None]
    present.sort(key=lambda pair: pair[0], reverse=reverse)
    return [item for _, item in present] + [item for place, item in ranks if place is None]


def rank(value: object) -> tuple[bool, float, str] | None:
    as_number = number(value)
    if value is None or (as_number is not None and math.isnan(as_number)):
        return None
    if as_number is None:
        return (True, 0.0, str(value))
    return (False, as_number, "")
