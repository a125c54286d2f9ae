"""In what runs differ, and which runs a filter means."""

from collections import defaultdict

import yaml

from launcher.config.messages import hint
from launcher.errors import ConfigError
from launcher.runs.find import LOADER, Run

OWN = ("state", "name", "id")  # what a filter may name beside keys of the configuration
TAG = "run.tag"


def differences(runs: list[Run]) -> list[dict[str, str]]:
    """For each run the keys that are not the same in all of them, with its values as one would type them.

    Keys of `run.not_identity` are left out: they cannot change the numbers.

    Where runs chose different options of a group (`model=gpt`, `model=mlp`), that choice stands for the
    group: of the keys under it only those are told that also differ between runs of the same choice.
    """
    chosen = varying([run.choices for run in runs if run.choices])
    groups = {group for group in chosen if is_group(group) and counts(group, runs)}
    keys = {key for key in differing_keys(runs, groups) if counts(key, runs)}
    keys = without_targets(without_echoes(runs, keys))
    return [
        {
            **{group: run.choices[group] for group in sorted(groups) if group in run.choices},
            **{key: run.values[key] for key in sorted(keys) if key in run.values},
        }
        for run in runs
    ]


def is_group(name: str) -> bool:
    """Whether a choice is one of a run's parts, not of Hydra's."""
    return "/" not in name and name != "hydra"


def counts(key: str, runs: list[Run]) -> bool:
    """Whether a key can change a run's numbers, or tells runs of one configuration apart."""
    if key == TAG:
        return True
    excluded = {"run", "paths", "hydra"}.union(*(run.config.get("run", {}).get("not_identity") or () for run in runs))
    parts = key.split(".")
    return not any(".".join(parts[:length]) in excluded for length in range(1, len(parts) + 1))


def differing_keys(runs: list[Run], groups: set[str]) -> set[str]:
    """Keys that vary over all runs; under one of `groups`, over the runs of one choice."""
    told = [run for run in runs if run.values]
    outside = [{k: v for k, v in run.values.items() if k.split(".")[0] not in groups} for run in told]
    found = varying(outside)
    for group in groups:
        families: dict[str | None, list[dict[str, str]]] = defaultdict(list)
        for run in told:
            within = {k: v for k, v in run.values.items() if k.startswith(f"{group}.")}
            families[run.choices.get(group)].append(within)
        for family in families.values():
            found |= varying(family)
    return found


def without_echoes(runs: list[Run], keys: set[str]) -> set[str]:
    """Without keys that only repeat one given on the command line: scheduler.max_steps follows trainer.max_steps."""
    given = {override.lstrip("+~").partition("=")[0] for run in runs for override in run.overrides} & keys
    rows = {key: tuple(run.values.get(key) for run in runs) for key in keys}
    told = {rows[key] for key in given}
    return {key for key in keys if key in given or rows[key] not in told}


def without_targets(keys: set[str]) -> set[str]:
    """Without `_target_` of a node of which other keys are told: a part that only some runs have is known by those."""
    others = {key.rpartition(".")[0] for key in keys if not key.endswith("._target_")}
    return {key for key in keys if not (key.endswith("._target_") and key.rpartition(".")[0] in others)}


def varying(rows: list[dict[str, str]]) -> set[str]:
    """Keys whose value is not the same in all rows, or that not all rows have."""
    keys = {key for row in rows for key in row}
    return {key for key in keys if len({row.get(key) for row in rows}) > 1}


def select(runs: list[Run], words: list[str]) -> list[Run]:
    """The runs that match all words.

    `key=value` compares a value of the configuration (numbers as numbers: 1e-3 is 0.001), the option of a
    group (`model=mlp`), or `state=`, `name=` and `id=`. Any other word is part of a name, or begins an id.

    Raises:
        ConfigError: no run has such a key, so it is misspelt.
    """
    keys = {word.partition("=")[0] for word in words if "=" in word} - set(OWN)
    known = {key for run in runs for key in (*run.choices, *run.values)} if keys else set()
    if runs and keys - known:
        names = sorted(known | set(OWN))
        raise ConfigError(*(f"'{key}=': no run has this key{hint(key, names)}" for key in sorted(keys - known)))
    return [run for run in runs if all(matches(run, word) for word in words)]


def matches(run: Run, word: str) -> bool:
    """Whether a run matches one word of a filter."""
    key, equals, value = word.partition("=")
    if not equals:
        return word in run.name or run.id.startswith(word)
    if key in OWN:
        return str(getattr(run, key)) == value
    if key in run.choices:
        return run.choices[key] == value
    return key in run.values and same(run.values[key], value)


def same(left: str, right: str) -> bool:
    """Whether two values are the same, as numbers or as YAML where they are that."""
    try:
        return float(left) == float(right)
    except ValueError:
        pass
    try:
        return bool(yaml.load(left, Loader=LOADER) == yaml.load(right, Loader=LOADER))
    except yaml.YAMLError:
        return left == right
