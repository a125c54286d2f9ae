"""Find the keys in which runs differ."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from launcher.config.identity.difference import diff, is_within
from launcher.config.messages import to_override_text
from launcher.runs.stored_run import StoredRun, StoredRuns

TAG = "run.tag"
TARGET = "._target_"
PRESET = "experiment"
Row = dict[str, str]
"""Values of a run by dotted keys, as typed on a command line."""


def differences(runs: StoredRuns) -> list[Row]:
    """Find the keys that are not the same in all runs, with each run's values as typed.

    Keys of `run.identity_exclude` are left out: they cannot change the numbers.

    If runs chose different options of a group (`model=gpt`, `model=mlp`), the choice represents the
    group. A key of the group is listed only if it also differs between runs of the same choice, and
    a key that repeats one of the group's under its name (`model.num_classes` of `data`) only if it
    was typed. A preset (`experiment=...`) represents all that was not typed, in the same way.
    Choices and classes come first, then keys by their number of distinct values.
    """
    groups, keys = _differing(runs)
    settings = [(run, run.settings) for run in runs if run.settings]
    rows = [
        {key: to_override_text(value) for key, value in run.settings.items() if key in keys}
        for run in runs
    ]
    _shorten_targets(rows)
    represented = {
        key
        for group in groups
        for key in {key for key in keys if key.startswith(f"{group}.")}
        - varying_within(group, settings)
    }
    keys = without_instantiation(without_echoes(runs, rows, keys, represented))
    rows = [
        {group: run.choices[group] for group in groups if group in run.choices}
        | {key: row[key] for key in keys if key in row}
        for run, row in zip(runs, rows, strict=True)
    ]
    distinct = {key: len({row.get(key) for row in rows}) for key in groups | keys}
    ordered = sorted(
        distinct, key=lambda key: (not (key in groups or key.endswith(TARGET)), -distinct[key], key)
    )
    return [{_named(key, groups): row[key] for key in ordered if key in row} for row in rows]


def _named(key: str, groups: Collection[str]) -> str:
    """Return the key under which a value is listed: a class has its node's."""
    node = key.removesuffix(TARGET)
    return key if node in groups else node


def _shorten_targets(rows: Sequence[Row]) -> None:
    """Replace dotted paths of classes by their last part, or by as many parts as differ."""
    for key in {key for row in rows for key in row if key.endswith(TARGET)}:
        paths = {row[key] for row in rows if key in row}
        count = 1
        while len({_last(path, count) for path in paths}) < len(paths):
            count += 1
        for row in rows:
            if key in row:
                row[key] = _last(row[key], count)


def _last(path: str, count: int) -> str:
    return ".".join(path.split(".")[-count:])


def _differing(runs: StoredRuns) -> tuple[set[str], set[str]]:
    """Return the groups and keys that differ and count, without what follows from a preset."""
    ignored = keys_without_effect(runs)
    chosen = [(run, run.choices) for run in runs if run.choices]
    settings = [(run, run.settings) for run in runs if run.settings]
    groups = {group for group in diff(*(row for _, row in chosen)) if is_group(group)}
    groups = {group for group in groups if counts(group, ignored)}
    keys = {key for key in diff(*(row for _, row in settings)) if counts(key, ignored)}
    if PRESET in groups:
        typed = {PRESET}.union(*map(names_in_overrides, runs))
        groups &= varying_within(PRESET, chosen) | typed
        keys &= varying_within(PRESET, settings) | typed
    return groups, keys


def names_in_overrides(run: StoredRun) -> set[str]:
    """Return the keys and groups on a run's command line."""
    return {override.lstrip("+~").partition("=")[0] for override in run.overrides}


def varying_within(group: str, rows: Sequence[tuple[StoredRun, Mapping[str, object]]]) -> set[str]:
    """Return the keys that differ between runs with the same option of a group."""
    families = defaultdict[str | None, list[Mapping[str, object]]](list)
    for run, row in rows:
        families[run.choices.get(group)].append(row)
    return {key for family in families.values() for key in diff(*family)}


def override_text(row: Row) -> str:
    """Format the differences of a run, without nulls: `optimizer.lr=0.001 seed=1`."""
    return " ".join(f"{key}={value}" for key, value in row.items() if value != "null")


def is_group(name: str) -> bool:
    """Return whether a choice belongs to the experiment, not to Hydra."""
    return "/" not in name and name != "hydra"


def keys_without_effect(runs: StoredRuns) -> set[str]:
    """Keys that cannot change a run's numbers."""
    return {"run", "paths", "hydra"}.union(*(run.identity_exclude for run in runs))


def counts(key: str, ignored: set[str]) -> bool:
    """Return whether a key can change a run's numbers, or distinguishes equal runs."""
    return key == TAG or not is_within(key, ignored)


def without_echoes(
    runs: StoredRuns, rows: Sequence[Row], keys: set[str], represented: set[str]
) -> set[str]:
    """Drop represented keys, and keys that repeat a typed one, or a represented one of their name.

    So scheduler.max_steps may repeat trainer.max_steps.
    """
    typed = set().union(*map(names_in_overrides, runs))

    def is_echo(key: str) -> bool:
        named = {other for other in represented if name_of(other) == name_of(key)}
        return any(
            all(row.get(key) in (None, row.get(other)) for row in rows)
            for other in (typed & keys) | named
        )

    return {key for key in keys - represented if key in typed or not is_echo(key)}


def name_of(key: str) -> str:
    return key.rpartition(".")[2]


def without_instantiation(keys: set[str]) -> set[str]:
    """Return the keys without `_partial_` and its like of a node whose class is listed."""
    nodes = {key.removesuffix(TARGET) for key in keys if key.endswith(TARGET)}
    return {
        key
        for key in keys
        if key.endswith(TARGET)
        or not (name_of(key).startswith("_") and key.rpartition(".")[0] in nodes)
    }
