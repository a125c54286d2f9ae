"""Find the run on disk that a configuration names."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from launcher.config.identity.course import describe_courses
from launcher.config.identity.difference import by_choice, diff, in_a_line
from launcher.config.identity.equivalence import canonical, identity_key
from launcher.config.identity.record_entry import read_identity
from launcher.config.identity.run_id import digest, identity_to_hash
from launcher.config.schema.hook_dependencies import COUNTING, uncounted_keys
from launcher.config.tree import Node, pick
from launcher.errors import ConfigError
from launcher.rundir.folder import is_copy
from launcher.rundir.record_format import RecordData
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.rundir.training_history import forget_settings

MAX_SHOWN_RUNS = 5
"""Maximum number of runs in a message."""
MAX_NEAR = 3
"""Maximum number of differing keys for a run to be near."""


@dataclass
class RunIndex:
    """The runs of a name, which a command reads once, however many jobs it has."""

    _by_folder: dict[Path, list[RunOnDisk]] = field(default_factory=dict)
    _by_key: dict[Path, dict[str, list[RunOnDisk]]] = field(default_factory=dict)

    def of(self, folder: Path) -> list[RunOnDisk]:
        """The runs in the folder of a name that a configuration can find."""
        if folder not in self._by_folder:
            self._by_folder[folder] = list(_read_runs(folder))
        return self._by_folder[folder]

    def equivalent(self, folder: Path, identity: Node) -> list[RunOnDisk]:
        """Return the runs in the folder of a name whose identities are equivalent to this."""
        if folder not in self._by_key:
            self._by_key[folder] = defaultdict(list)
            for run in self.of(folder):
                self._by_key[folder][identity_key(run.identity or {})].append(run)
        runs = self._by_key[folder]
        return runs.get(identity_key(identity), []) if runs else []


def _read_runs(folder: Path, without: str = "") -> Iterator[RunOnDisk]:
    try:
        names = {entry.name for entry in os.scandir(folder) if entry.name[0] != "."}
    except OSError:
        return
    for name in sorted(names - {without}):
        run = RunOnDisk.read(folder / name)
        has_id = run.identity is not None and run.record.get("identity_id") is not None
        if has_id and not is_copy(folder / name, run.record.get("folder")):
            # Configuration and trials are most of a record, and thousands of runs stay in memory.
            run.record.pop("config", None)
            run.record.pop("trials", None)
            forget_settings(run.attempts)
            yield run


def equivalent(folder: Path, identity: Node, runs: RunIndex) -> RunOnDisk | None:
    """Return the run of an equivalent configuration, if the run's own folder has none yet.

    Args:
        folder: the run's own folder, named by its id.
        identity: the identity of the configuration.
        runs: the runs on disk.
    """
    # Hydra's own launchers make the folder before the job starts.
    if os.path.isdir(folder) and any(folder.iterdir()):
        return None
    matches = runs.equivalent(folder.parent, identity)
    matches = [run for run in matches if run.record["identity_id"] == folder.name] or matches
    if len(matches) > 1:
        listed = ", ".join(run.folder.path.name for run in matches[:MAX_SHOWN_RUNS])
        raise ConfigError(
            f"run.id={folder.name}: {len(matches)} runs have an equivalent configuration, {listed};"
            " choose one with run.id=<id>, or start another run with run.tag=<word>."
        )
    return matches[0] if matches else None


def describe_changes(run: Node, other: RunOnDisk) -> str:
    """Return the differences of a run's configuration from an equivalent one, in a line."""
    own = read_identity(run)
    before = other.identity or {}
    uncounted = uncounted_keys(*pick(before, COUNTING))
    changes = diff(before, {} if own is None else own[1], ignored=uncounted)
    texts = [in_a_line(changes)] if changes else []
    texts += [f"{key} does not count any more" for key in sorted(uncounted)]
    return ", ".join(texts)


def describe_nearest_run(folder: Path, record: RecordData) -> str | None:
    """Describe the run of the same name that differs in the fewest keys from a new run.

    Args:
        folder: the folder of the new run.
        record: its run.json.
    Returns:
        A line, or None if no run is near, or the new run was named outright.
    """
    is_named = record["identity_id"] != folder.name
    others = [] if is_named else [*_read_runs(folder.parent, without=folder.name)]
    if not others:
        return None
    current = canonical(record["identity"] or {})
    near = []
    for run in others:
        changes = diff(canonical(run.identity or {}), current)
        changes = by_choice(changes, run.record.get("choices", {}), record["choices"])
        if 0 < len(changes) <= MAX_NEAR:
            near.append((-len(changes), run.started, run, changes))
    if not near:
        return None
    *_, run, changes = max(near, key=lambda candidate: candidate[:2])
    best = run.record.get("best")
    value = "" if best is None else f", {best['metric']} {best['value']:.4g}"
    trained = describe_courses(RunOnDisk.read(run.path).record, ())
    addition = f"; it was trained with {trained}" if trained else ""
    return (
        f"New run. The nearest is {run.folder.path.name} ({run.record.get('state')}{value});"
        f" {in_a_line(changes)}{addition}."
    )


def is_same(before: Node, now: Node) -> bool:
    """Return whether two stored configurations have equal or equivalent identities."""
    trees = [dict(tree) for tree in (before, now)]
    one, other = (identity_to_hash(OmegaConf.create(tree), tree) for tree in trees)
    return digest(one) == digest(other) or identity_key(one) == identity_key(other)


def check_identity(run: Mapping[Any, Any]) -> None:
    """Check that the folder of a run's id has no run of another configuration.

    A run that is named outright (`run.id=...`) may have any configuration.
    """
    entry = read_identity(run)
    folder = Path(run["dir"])
    if entry is None or entry[0] != run["id"]:
        return
    identity = RunOnDisk.read(folder).identity
    if identity is not None and (different := diff(identity, entry[1])):
        raise ConfigError(
            f"run.dir='{folder}': is of another configuration ({in_a_line(different)}); move it"
            " away, or start another run of this configuration with run.tag=<word>."
        )
