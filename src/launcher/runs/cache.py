"""What a listing has read of ended runs, kept in the user's cache folder for the next listing.

An entry is valid while each file that it was read from has the same time, size and inode. If anything is wrong with the
cache or its folder, the runs' files are read instead.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.run.files import expanded, parse_json
from launcher.runs.overlay import Base
from launcher.runs.run_files import RunFiles

VERSION = 3
KEYS = {"stamp", "record", "values", "choices", "overrides", "curve", "note", "metrics"}
"""The keys of an entry."""
ENDED = ("completed", "failed", "cancelled", "preempted", "paused")
SETTLED = 2.0
"""Seconds since a file's last change before an entry is kept: a second change within the clock's resolution would not
show in its time."""
WORTH = 20
"""The cache is written if there are at least this many new entries."""
PIECE = 100
"""Entries that are written at once."""
UNUSED = 90 * 86400.0
"""Seconds after which the cache of an output folder that nobody lists is removed."""


class RunCache:
    """
    Args:
        outputs: the folder whose runs are listed.
    """

    def __init__(self, outputs: Path):
        self.outputs = str(outputs.absolute())
        name = hashlib.sha256(self.outputs.encode()).hexdigest()[:16]
        self.path = cache_folder() / f"runs-{name}.json"
        self.base = Base({})
        self.choices: Mapping[str, str] = {}
        self._old: dict[str, dict[str, Any]] = {}
        self._kept: dict[str, dict[str, Any]] = {}
        self._new = 0
        self._load()

    def _load(self) -> None:
        try:
            data = parse_json(self.path.read_bytes())
            if data["version"] == VERSION and data["outputs"] == self.outputs:
                self.base, self.choices, self._old = Base(data["values"]), data["choices"], data["runs"]
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return

    def get(self, files: RunFiles) -> dict[str, Any] | None:
        """The entry of a run; None if its files have changed since."""
        entry = self._old.pop(files.folder, None)
        if entry is None or entry.keys() != KEYS or entry["stamp"] != files.stamp():
            return None
        self._kept[files.folder] = entry
        return entry

    def add(self, files: RunFiles, entry: dict[str, Any]) -> None:
        """Keep an entry, unless the run's files have just changed.

        Args:
            files: those that the entry was read from.
        """
        stamp = files.stamp()
        if stamp is not None and files.opened - files.changed >= SETTLED:
            self._kept[files.folder] = entry | {"stamp": stamp}
            self._new += 1

    def save(self) -> None:
        if self._new < WORTH:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")  # two listings may write at once
            try:
                with open(temporary, "w") as file:
                    file.writelines(self._pieces())
                os.replace(temporary, self.path)
            finally:
                temporary.unlink(missing_ok=True)
            for other in self.path.parent.glob("runs-*.json"):
                if time.time() - other.stat().st_mtime > UNUSED:
                    other.unlink()
        except (OSError, ValueError):
            return

    def _pieces(self) -> Iterator[str]:
        """The file, piece by piece: as a whole it is larger than the runs in memory."""
        encode = json.JSONEncoder(separators=(",", ":")).encode
        head = {"version": VERSION, "outputs": self.outputs, "values": self.base.values, "choices": self.choices}
        yield f'{encode(head)[:-1]},"runs":{{'
        entries = list(self._kept.items())
        for start in range(0, len(entries), PIECE):
            yield f"{',' if start else ''}{encode(dict(entries[start : start + PIECE]))[1:-1]}"
        yield "}}"


def cache_folder() -> Path:
    place = os.environ.get("XDG_CACHE_HOME")
    return (Path(place) if place else expanded("~/.cache")) / "launcher"
