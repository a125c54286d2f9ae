"""Find the run on disk that a configuration names."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from launcher.config.command import stored_identity
from launcher.config.difference import by_choice, diff, in_a_line
from launcher.config.equivalence import canonical, identity_key
from launcher.config.identity import fix_name, hashed_identity, run_id
from launcher.config.plain import to_plain
from launcher.config.tree import is_interpolation
from launcher.errors import ConfigError
from launcher.rundir.folder import is_copy
from launcher.rundir.record_format import IDENTITY_VERSION, stored_record

MAX_SHOWN = 5
"""Maximum number of runs in a message."""
KEPT = ("state", "best", "attempts", "identity", "identity_id", "choices")
"""Keys of a record that a look-up reads."""
MAX_NEAR = 3
"""Maximum number of differing keys for a run to be near."""


@dataclass(frozen=True)
class Known:
    """A run on disk that a configuration names."""

    folder: Path
    record: dict[str, Any]

    @property
    def identity(self) -> dict[str, Any]:
        identity: dict[str, object] = self.record["identity"]
        return identity

    @property
    def started(self) -> str:
        attempts = self.record.get("attempts") or [{}]
        return str(attempts[0].get("started") or "")


@dataclass
class Runs:
    """The runs of a name, which a command reads once, however many jobs it has."""

    _by_folder: dict[Path, list[Known]] = field(default_factory=dict)
    _by_key: dict[Path, dict[str, list[Known]]] = field(default_factory=dict)

    def of(self, folder: Path) -> list[Known]:
        """The runs in the folder of a name."""
        if folder not in self._by_folder:
            self._by_folder[folder] = list(_known(folder))
        return self._by_folder[folder]

    def equivalent(self, folder: Path, key: str) -> list[Known]:
        """Return the runs in the folder of a name whose `identity_key` is this."""
        if folder not in self._by_key:
            index = self._by_key[folder] = {}
            for run in self.of(folder):
                index.setdefault(identity_key(run.identity), []).append(run)
        return self._by_key[folder].get(key, [])


def _known(folder: Path) -> Iterator[Known]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.name[0] != ".")
    except OSError:
        return
    for name in names:
        record = stored_record(folder / name)
        is_named = record.get("identity") is not None and record.get("identity_id") is not None
        is_current = record.get("identity_version") == IDENTITY_VERSION
        if is_named and is_current and not is_copy(folder / name, record.get("folder")):
            yield Known(folder / name, {key: record.get(key) for key in KEPT})


def name_run(config: DictConfig, runs: Runs) -> Known | None:
    """Set a run's name, id and folder, for a new run the id of an equivalent run.

    Returns:
        The equivalent run, or None if the run has the id of its own configuration or a typed id.
    """
    fix_name(config)
    known = stored_identity(config.run)
    if known is None or known[0] != config.run.id:
        return None
    folder = Path(directory := config.run.dir)
    if (run := _equivalent(known, folder, runs)) is not None:
        config.run.id = run.folder.name
    if folder.name == known[0] and not is_interpolation(directory):
        # Each access would resolve it again.
        config.run.dir = directory if run is None else str(run.folder)
    return run


def _equivalent(known: tuple[str, dict[str, Any]], folder: Path, runs: Runs) -> Known | None:
    """The run of an equivalent configuration, if the run's own folder has none yet."""
    if _has_files(folder):
        return None
    equivalent = runs.equivalent(folder.parent, identity_key(known[1]))
    equivalent = [run for run in equivalent if run.record["identity_id"] == known[0]] or equivalent
    if len(equivalent) > 1:
        listed = ", ".join(run.folder.name for run in equivalent[:MAX_SHOWN])
        raise ConfigError(
            f"run.id={known[0]}: {len(equivalent)} runs have an equivalent configuration, {listed};"
            " choose one with run.id=<id>, or start another run with run.tag=<word>."
        )
    return equivalent[0] if equivalent else None


def _has_files(folder: Path) -> bool:
    """Return whether a folder has a run. Hydra's own launchers make it before the job starts."""
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def news(config: DictConfig, run: Known) -> str:
    """Return the differences of a configuration from an equivalent one, in a line."""
    known = stored_identity(config.run)
    return in_a_line(diff(run.identity, {} if known is None else known[1]))


def continues(config: DictConfig, run: Known) -> str:
    """Return the line that names the run which `name_run` has found."""
    changes = news(config, run)
    return f"Continues {config.run.id}{f': {changes}' if changes else ', by `runs adopt`'}."


def nearest(folder: Path, record: Mapping[str, Any]) -> str | None:
    """Describe the run of the same name that differs in the fewest keys from a new run.

    Args:
        folder: the folder of the new run.
        record: its run.json.
    Returns:
        A line, or None if no run is near, or the new run was named outright.
    """
    if record["identity_id"] != folder.name:
        return None
    current = canonical(record["identity"])
    near = []
    for run in Runs().of(folder.parent):
        changes = diff(canonical(run.identity), current)
        changes = by_choice(changes, run.record["choices"] or {}, record["choices"])
        if 0 < len(changes) <= MAX_NEAR:
            near.append((-len(changes), run.started, run, changes))
    if not near:
        return None
    *_, run, changes = max(near, key=lambda candidate: candidate[:2])
    best = run.record["best"]
    value = "" if best is None else f", {best['metric']} {best['value']:.4g}"
    return (
        f"New run. The nearest is {run.folder.name} ({run.record['state']}{value});"
        f" {in_a_line(changes)}."
    )


def is_same(before: DictConfig, now: DictConfig) -> bool:
    """Return whether two configurations have equal or equivalent identities."""
    if run_id(before) == run_id(now):
        return True
    one, other = (
        identity_key(hashed_identity(config, to_plain(config))) for config in (before, now)
    )
    return one == other


def check_identity(run: Mapping[Any, Any]) -> None:
    """Check that the folder of a run's id has no run of another configuration.

    A run that is named outright (`run.id=...`) may have any configuration.
    """
    known, folder = stored_identity(run), Path(run["dir"])
    if known is None or known[0] != run["id"]:
        return
    record = stored_record(folder)
    identity = record.get("identity")
    if identity is None or record.get("identity_version") != IDENTITY_VERSION:
        return
    if different := diff(identity, known[1]):
        raise ConfigError(
            f"run.dir='{folder}': is of another configuration ({in_a_line(different)}); move it"
            " away, or start another run of this configuration with run.tag=<word>."
        )
