"""Find the run on disk that a configuration names."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from launcher.config.command import stored_identity
from launcher.config.equivalence import canonical, identity_key
from launcher.config.identity import changed_keys, digest, drift, hashed_identity
from launcher.config.messages import as_typed, show
from launcher.config.resolve import escaped
from launcher.config.secrets import is_expression
from launcher.config.tree import leaves, mapped
from launcher.errors import ConfigError
from launcher.rundir.folder import is_copy
from launcher.rundir.record_format import IDENTITY_VERSION, read_record

MAX_SHOWN = 5
"""Differences in a message."""
KEPT = ("state", "best", "attempts", "identity", "identity_id")
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
        try:
            record = read_record(folder / name / "run.json")
        except (OSError, ValueError):
            continue
        is_named = record.get("identity") is not None and record.get("identity_id") is not None
        is_current = record.get("identity_version") == IDENTITY_VERSION
        if is_named and is_current and not is_copy(folder / name, record.get("folder")):
            yield Known(folder / name, {key: record.get(key) for key in KEPT})


def equivalent(
    folder: Path, identity: Mapping[str, Any], hashed: Mapping[str, object], runs: Runs
) -> Known | None:
    """Return the run of an equivalent configuration, if the run's own folder has none yet.

    Args:
        folder: the run's own folder, named by its id.
        identity: the identity of the configuration as it is stored.
        hashed: the same with values from the environment.
        runs: the runs on disk.
    """
    if _has_files(folder):
        return None
    found = runs.equivalent(folder.parent, identity_key(identity))
    found = [run for run in found if _has_equal_secrets(hashed, run)]
    found = [run for run in found if run.record["identity_id"] == folder.name] or found
    if len(found) > 1:
        listed = ", ".join(run.folder.name for run in found[:MAX_SHOWN])
        raise ConfigError(
            f"run.id={folder.name}: {len(found)} runs have an equivalent configuration, {listed};"
            " choose one with run.id=<id>, or start another run with run.tag=<word>."
        )
    return found[0] if found else None


def _has_files(folder: Path) -> bool:
    """Return whether a folder has a run. Hydra's own launchers make it before the job starts."""
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def _has_equal_secrets(hashed: Mapping[str, object], run: Known) -> bool:
    """Return whether the values from the environment are the same as when the run was named.

    They are not stored, but with them the identity has the run's id.
    """
    if not any(_is_kept(path, value) for path, value in leaves(run.identity).items()):
        return True
    values = leaves(hashed)

    def value(stored: object, keys: tuple[object, ...]) -> Any:
        path = ".".join(map(str, keys))
        return values.get(path, stored) if _is_kept(path, stored) else stored

    identity_id: str = run.record["identity_id"]
    return digest(mapped(run.identity, value)) == identity_id


def _is_kept(path: str, value: object) -> bool:
    return isinstance(value, str | list | dict) and is_expression(
        str(value), path.rpartition(".")[2]
    )


def news(run: Mapping[str, Any], known: Known) -> str:
    """Return the differences of a run's configuration from an equivalent one, in a line."""
    own = stored_identity(run)
    messages = drift(known.identity, {} if own is None else own[1])
    more = " ..." if len(messages) > MAX_SHOWN else ""
    return " ".join(messages[:MAX_SHOWN]) + more


def continuation(run: Mapping[str, Any], known: Known) -> str:
    """Return the line that names the run under which a configuration continues."""
    changes = news(run, known)
    return (
        f"Continues {run['id']}: {changes}"
        if changes
        else f"Continues {run['id']}, by `runs adopt`."
    )


def nearest(run: Mapping[str, Any], runs: Runs) -> str | None:
    """Describe the run of the same name that differs in the fewest keys.

    Returns:
        A line, or None if this run exists or no run is near.
    """
    own, folder = stored_identity(run), Path(run["dir"])
    if own is None or own[0] != run["id"] or _has_files(folder):
        return None
    current = leaves(canonical(own[1]))
    near: list[tuple[int, str, list[str], Known]] = []
    for known in runs.of(folder.parent):
        before = leaves(canonical(known.identity))
        keys = changed_keys(before, current)
        if 0 < len(keys) <= MAX_NEAR:
            shown = [
                f"{key}={as_typed(before[key])}" if key in before else f"no {key}" for key in keys
            ]
            near.append((-len(keys), known.started, shown, known))
    if not near:
        return None
    _, _, shown, other = max(near, key=lambda candidate: candidate[:2])
    best = other.record["best"]
    value = "" if best is None else f", {best['metric']} {best['value']:.4g}"
    return (
        f"New run. Nearest: {other.folder.name} ({other.record['state']}{value}), which has"
        f" {', '.join(shown)}."
    )


def is_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether two stored configurations have equal or equivalent identities."""
    trees = [escaped(tree) for tree in (before, now)]
    one, other = (hashed_identity(OmegaConf.create(tree), tree) for tree in trees)
    return digest(one) == digest(other) or identity_key(one) == identity_key(other)


def check_identity(run: Mapping[Any, Any]) -> None:
    """Check that the folder of a run's id has no run of another configuration.

    A run that is named outright (`run.id=...`) may have any configuration.
    """
    known, folder = stored_identity(run), Path(run["dir"])
    if known is None or known[0] != run["id"]:
        return
    try:
        record = read_record(folder / "run.json")
    except (OSError, ValueError):
        return
    identity = record.get("identity")
    if identity is None or record.get("identity_version") != IDENTITY_VERSION:
        return
    if different := _differences(identity, known[1]):
        more = ", ..." if len(different) > MAX_SHOWN else ""
        raise ConfigError(
            f"run.dir='{folder}': is of another configuration"
            f" ({', '.join(different[:MAX_SHOWN])}{more}); move it away, or start another run of"
            " this configuration with run.tag=<word>."
        )


def _differences(stored: Mapping[str, object], current: Mapping[str, object]) -> list[str]:
    """Return each key in which two identities of one id differ, with both values."""
    before, after = leaves(stored), leaves(current)
    keys = [
        key
        for key in changed_keys(stored, current)
        if not any(
            is_expression(str(values.get(key)), key.rpartition(".")[2])
            for values in (before, after)
        )
    ]
    return [f"{key}={_shown(before, key)} there, {_shown(after, key)} here" for key in keys]


def _shown(values: Mapping[str, object], key: str) -> str:
    return show(values[key]) if key in values else "missing"
