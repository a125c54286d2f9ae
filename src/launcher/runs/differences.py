"""Find the keys in which runs differ."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from launcher.config.messages import as_typed
from launcher.runs.stored_run import StoredRun

TAG, TARGET = "run.tag", "._target_"
Row = dict[str, str]
"""Values of a run by dotted keys, as typed on a command line."""


def differences(runs: Sequence[StoredRun]) -> list[Row]:
    """Find the keys that are not the same in all runs, with each run's values as typed.

    Keys of `run.identity_exclude` are left out: they cannot change the numbers.

    If runs chose different options of a group (`model=gpt`, `model=mlp`), the choice represents the
    group. A key of the group is listed only if it also differs between runs of the same choice.
    Choices and classes come first, then keys by their number of distinct values.
    """
    ignored = not_counted(runs)
    groups = {
        group for group in varying(run.choices for run in runs if run.choices) if is_group(group)
    }
    groups = {group for group in groups if counts(group, ignored)}
    keys = {
        key for key in varying(run.settings for run in runs if run.keys) if counts(key, ignored)
    }
    rows = [
        {key: as_typed(value) for key, value in run.settings.items() if key in keys} for run in runs
    ]
    keys = without_targets(without_echoes(runs, rows, within_choices(runs, rows, keys, groups)))
    chosen = [
        {group: run.choices[group] for group in groups if group in run.choices} for run in runs
    ]
    rows = [
        options | {key: row[key] for key in keys if key in row}
        for options, row in zip(chosen, rows, strict=True)
    ]
    distinct = {key: len({row.get(key) for row in rows}) for key in groups | keys}
    ordered = sorted(
        distinct, key=lambda key: (not (key in groups or key.endswith(TARGET)), -distinct[key], key)
    )
    return [{key: row[key] for key in ordered if key in row} for row in rows]


def without_defaults(runs: Sequence[StoredRun], rows: Sequence[Row]) -> list[Row]:
    """Return the `differences` without nulls and defaults; a run that has only defaults keeps them.

    A default is a value of all runs whose command line does not set the key, while others set it.
    The values of a run with a preset (`experiment=...`) may come from that, so they are kept.
    """
    names = [
        row.keys() | set()
        if run.choices.get("experiment") not in (None, "null")
        else {override.lstrip("+").partition("=")[0] for override in run.overrides}
        for run, row in zip(runs, rows, strict=True)
    ]
    others: dict[str, set[str | None]] = defaultdict(set)
    for row, typed in zip(rows, names, strict=True):
        for key in row.keys() - typed:
            others[key].add(row[key])
    are_set = set().union(*names)
    defaults = {key: value for key, (value, *more) in others.items() if key in are_set and not more}
    shown = []
    for row, typed in zip(rows, names, strict=True):
        known = {key: value for key, value in row.items() if value != "null"}
        shown.append(
            {key: known[key] for key in known if key in typed or known[key] != defaults.get(key)}
            or known
        )
    return shown


def varying(rows: Iterable[Mapping[str, object]]) -> set[str]:
    """Return the keys whose value is not the same in all rows, or that not all rows have."""
    keys: set[str] = set()
    base: Mapping[str, object] | None = None
    for row in rows:
        base = row if base is None else base
        keys |= row.keys() ^ base.keys()
        keys.update(
            [
                key
                for key, value in row.items()
                # Most values are one object, which needs no call.
                if key in base and value is not base[key] and _differ(value, base[key])
            ]
        )
    return keys


def _differ(one: object, other: object) -> bool:
    return one != other or type(one) is not type(other)


def is_group(name: str) -> bool:
    """Return whether a choice belongs to the experiment, not to Hydra."""
    return "/" not in name and name != "hydra"


def not_counted(runs: Sequence[StoredRun]) -> set[str]:
    """Keys that cannot change a run's numbers."""
    return {"run", "paths", "hydra"}.union(*(run.identity_exclude for run in runs))


def counts(key: str, ignored: set[str]) -> bool:
    """Return whether a key can change a run's numbers, or distinguishes equal runs."""
    parts = key.split(".")
    return key == TAG or not any(
        ".".join(parts[:length]) in ignored for length in range(1, len(parts) + 1)
    )


def within_choices(
    runs: Sequence[StoredRun], rows: Sequence[Row], keys: set[str], groups: set[str]
) -> set[str]:
    """Return the keys without the keys of `groups` that are the same in all runs of one choice."""
    kept = {key for key in keys if key.split(".")[0] not in groups}
    for group in groups:
        families: dict[str | None, list[Row]] = defaultdict(list)
        for run, row in zip(runs, rows, strict=True):
            if run.keys:
                families[run.choices.get(group)].append(row)
        kept |= {
            key
            for family in families.values()
            for key in varying(family)
            if key.startswith(f"{group}.")
        }
    return kept


def without_echoes(runs: Sequence[StoredRun], rows: Sequence[Row], keys: set[str]) -> set[str]:
    """Drop keys that only repeat a key of the command line, as scheduler.max_steps may."""
    overrides = {override for run in runs for override in run.overrides}
    typed = {override.lstrip("+~").partition("=")[0] for override in overrides} & keys
    columns = {key: [row.get(key) for row in rows] for key in keys}

    def repeats(key: str, other: str) -> bool:
        return all(
            first in (None, value)
            for first, value in zip(columns[key], columns[other], strict=True)
        )

    return {key for key in keys if key in typed or not any(repeats(key, other) for other in typed)}


def without_targets(keys: set[str]) -> set[str]:
    """The keys without the `_target_` of nodes that have other listed keys."""
    others = {key.rpartition(".")[0] for key in keys if not key.endswith(TARGET)}
    return {key for key in keys if not (key.endswith(TARGET) and key.rpartition(".")[0] in others)}
