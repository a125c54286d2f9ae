"""In which keys runs differ."""

from collections import defaultdict
from collections.abc import Mapping

from launcher.runs.overlay import varying
from launcher.runs.stored_run import NOT_IDENTITY, StoredRun

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
    listed, ordered = sorted(groups), sorted(without_targets(without_echoes(runs, keys)))
    return [
        {
            **{group: choice for group in listed if (choice := run.choices.get(group)) is not None},
            **{key: value for key in ordered if (value := run.values.get(key)) is not None},
        }
        for run in runs
    ]


def is_group(name: str) -> bool:
    """Whether a choice belongs to the experiment, not to Hydra."""
    return "/" not in name and name != "hydra"


def not_counted(runs: list[StoredRun]) -> set[str]:
    """Keys that cannot change a run's numbers."""
    named = {run.values.get(NOT_IDENTITY): run for run in runs}  # most have the same
    return {"run", "paths", "hydra"}.union(*(run.not_identity for run in named.values()))


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
        for family in families.values():
            within |= {key for key in varying(family) if key.startswith(f"{group}.")}
    return outside | within


def without_echoes(runs: list[StoredRun], keys: set[str]) -> set[str]:
    """Without keys that only repeat a key of the command line: scheduler.max_steps follows trainer.max_steps."""
    overrides = {override for run in runs for override in run.overrides}
    typed = {override.lstrip("+~").partition("=")[0] for override in overrides} & keys
    rows = {key: tuple(run.values.get(key) for run in runs) for key in keys}
    listed = {rows[key] for key in typed}
    return {key for key in keys if key in typed or rows[key] not in listed}


def without_targets(keys: set[str]) -> set[str]:
    """The keys without the `_target_` of nodes that have other listed keys."""
    others = {key.rpartition(".")[0] for key in keys if not key.endswith("._target_")}
    return {key for key in keys if not (key.endswith("._target_") and key.rpartition(".")[0] in others)}
