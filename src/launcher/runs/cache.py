"""What a listing has read of ended runs, kept in the user's cache folder for the next listing.

An entry is valid while each file that it was read from has the same time, size and inode. If anything is wrong with the
cache or its folder, the runs' files are read instead.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

VERSION = 2
FILES = (
    "run.json",
    ".hydra/config.yaml",
    ".hydra/hydra.yaml",
    ".hydra/overrides.yaml",
    "metrics.jsonl",
    "submission.json",
)
"""The files that an entry is read from."""
KEYS = {"stamp", "record", "values", "choices", "overrides", "curve", "note", "metrics"}
"""The keys of an entry."""
ENDED = ("completed", "failed", "cancelled", "preempted", "paused")
SETTLED = 2.0
"""Seconds since a file's last change before an entry is kept: a second change within the clock's resolution would not
show in its time."""
WORTH = 20
"""The cache is written if there are at least this many new entries."""
UNUSED = 90 * 86400.0
"""Seconds after which the cache of an output folder that nobody lists is removed."""


class Overlay(Mapping[str, str]):
    """A mapping, stored as its difference from a shared one: ten thousand runs of a sweep have most values in common.

    Args:
        changed: the other values; None: the key is not there.
    """

    __slots__ = ("base", "changed")

    def __init__(self, base: Mapping[str, str], changed: dict[str, str | None]):
        self.base, self.changed = base, changed

    @classmethod
    def of(cls, base: Mapping[str, str], values: Mapping[str, str]) -> "Overlay":
        changed: dict[str, str | None] = {key: value for key, value in values.items() if base.get(key) != value}
        return cls(base, changed | {key: None for key in base if key not in values})

    def __getitem__(self, key: str) -> str:
        value = self.changed[key] if key in self.changed else self.base[key]
        if value is None:
            raise KeyError(key)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        value = self.changed[key] if key in self.changed else self.base.get(key)
        return default if value is None else value

    def __contains__(self, key: object) -> bool:
        return self.changed[key] is not None if key in self.changed else key in self.base

    def __iter__(self) -> Iterator[str]:
        yield from (key for key in self.base if key not in self.changed)
        yield from (key for key, value in self.changed.items() if value is not None)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def __len__(self) -> int:
        return len(self.base) + sum((value is not None) - (key in self.base) for key, value in self.changed.items())


def may_differ(rows: Sequence[Mapping[str, str]]) -> set[str]:
    """The keys whose values may differ between the rows."""
    overlays = [row for row in rows if isinstance(row, Overlay)]
    if len(overlays) == len(rows) and len({id(row.base) for row in overlays}) == 1:
        return {key for row in overlays for key in row.changed}
    return {key for row in rows for key in row}


class RunCache:
    """
    Args:
        outputs: the folder whose runs are listed.
    """

    def __init__(self, outputs: Path):
        self.outputs = str(outputs.absolute())
        name = hashlib.sha256(self.outputs.encode()).hexdigest()[:16]
        self.path = cache_folder() / f"runs-{name}.json"
        self.values: Mapping[str, str] = {}
        self.choices: Mapping[str, str] = {}
        self._old: dict[str, dict[str, Any]] = {}
        self._kept: dict[str, dict[str, Any]] = {}
        self._new = 0
        self._load()

    def _load(self) -> None:
        try:
            data = json.loads(self.path.read_bytes())
            if data["version"] == VERSION and data["outputs"] == self.outputs:
                self.values, self.choices, self._old = data["values"], data["choices"], data["runs"]
        except (OSError, ValueError, TypeError, KeyError):
            return

    def get(self, folder: Path) -> dict[str, Any] | None:
        """The entry of a run; None if its files have changed since."""
        entry = self._old.pop(str(folder), None)
        if entry is None or entry.keys() != KEYS or entry["stamp"] != stamp(folder)[0]:
            return None
        self._kept[str(folder)] = entry
        return entry

    def add(self, folder: Path, entry: dict[str, Any], seen: tuple[str, float]) -> None:
        """Keep an entry, unless the run's files have just changed.

        Args:
            seen: the run's `stamp` before its files were read.
        """
        if time.time() - seen[1] >= SETTLED and stamp(folder)[0] == seen[0]:
            self._kept[str(folder)] = entry | {"stamp": seen[0]}
            self._new += 1

    def save(self) -> None:
        if self._new < WORTH:
            return
        data = {"version": VERSION, "outputs": self.outputs, "values": self.values, "choices": self.choices}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")  # two listings may write at once
            temporary.write_text(json.dumps(data | {"runs": self._kept}, separators=(",", ":")))
            os.replace(temporary, self.path)
            for other in self.path.parent.glob("runs-*.json"):
                if time.time() - other.stat().st_mtime > UNUSED:
                    other.unlink()
        except (OSError, ValueError):
            return


def cache_folder() -> Path:
    place = os.environ.get("XDG_CACHE_HOME")
    return (Path(place) if place else Path("~/.cache").expanduser()) / "launcher"


def stamp(folder: str | os.PathLike[str]) -> tuple[str, float]:
    """What identifies the present content of a run's files, and the time of the last change of one."""
    parts, newest = [], 0.0
    for name in FILES:
        try:
            status = os.stat(f"{os.fspath(folder)}/{name}")
        except OSError:
            parts.append("-")
            continue
        parts.append(f"{status.st_mtime_ns:x}.{status.st_size:x}.{status.st_ino:x}")
        newest = max(newest, status.st_mtime)
    return " ".join(parts), newest
