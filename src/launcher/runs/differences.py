"""In which keys runs differ."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from launcher.runs.cache import may_differ
from launcher.runs.stored_run import StoredRun

TAG = "run.tag"


def differences(runs: list[StoredRun]) -> list[dict[str, str]]:
    """For each run, the keys that are not the same in all of them, with its values as typed on a command line.

    Keys of `run.not_identity` are left out: they cannot change the numbers.

    Where runs chose different options of a group (`model=gpt`, `model=mlp`), the choice represents the group: of its
    keys, only those are listed that also differ between runs of the same choice.
    """
    chosen = varying([run.choices for run in runs if run.choices])
    ignored = not_counted(runs)
    groups = {group for group in chosen if is_group(group) and counts(group, ignored)}
    keys = {key for key in differing_keys(runs, groups) if counts(key, ignored)}
    keys = without_targets(without_echoes(runs, keys))
    return [
        {
            **{group: run.choices[group] for group in sorted(groups) if group in run.choices},
            **{key: run.values[key] for key in sorted(keys) if key in run.values},
        }
        for run in runs
    ]


def is_group(name: str) -> bool:
    """Whether a choice belongs to the experiment, not to Hydra."""
    return "/" not in name and name != "hydra"


def not_counted(runs: list[StoredRun]) -> set[str]:
    """Keys that cannot change a run's numbers."""
    return {"run", "paths", "hydra"}.union(*{tuple(run.not_identity) for run in runs})


def counts(key: str, ignored: set[str]) -> bool:
    """Whether a key can change a run's numbers, or distinguishes runs of one configuration."""
    parts = key.split(".")
    return key == TAG or not any(".".join(parts[:length]) in ignored for length in range(1, len(parts) + 1))


def differing_keys(runs: list[StoredRun], groups: set[str]) -> set[str]:
    """Keys that vary over all runs; under one of `groups`, over the runs of one choice."""
    rows = [run.values for run in runs if run.values]
    keys = varying(rows)
    outside = {key for key in keys if key.split(".")[0] not in groups}
    within: set[str] = set()
    for group in groups:
        families: dict[str | None, list[Mapping[str, str]]] = defaultdict(list)
        for run in runs:
            if run.values:
                families[run.choices.get(group)].append(run.values)
        candidates = {key for key in keys if key.startswith(f"{group}.")}
        for family in families.values():
            within |= varying(family, candidates)
    return outside | within


def without_echoes(runs: list[StoredRun], keys: set[str]) -> set[str]:
    """Without keys that only repeat a key of the command line: scheduler.max_steps follows trainer.max_steps."""
    typed = {override.lstrip("+~").partition("=")[0] for run in runs for override in run.overrides} & keys
    rows = {key: tuple(run.values.get(key) for run in runs) for key in keys}
    listed = {rows[key] for key in typed}
    return {key for key in keys if key in typed or rows[key] not in listed}


def without_targets(keys: set[str]) -> set[str]:
    """Without the `_target_` of a node whose other keys are listed."""
    others = {key.rpartition(".")[0] for key in keys if not key.endswith("._target_")}
    return {key for key in keys if not (key.endswith("._target_") and key.rpartition(".")[0] in others)}


def varying(rows: Sequence[Mapping[str, str]], keys: set[str] | None = None) -> set[str]:
    """The keys (of `keys`, if given) whose value is not the same in all rows, or that not all rows have."""
    keys = may_differ(rows) if keys is None else keys
    return {key for key in keys if len({row.get(key) for row in rows}) > 1}
