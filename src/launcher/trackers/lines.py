"""The lines of metrics.jsonl and media.jsonl, each step once, read while the files are written."""

import os
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path
from typing import Any

from launcher.process.files import open_file
from launcher.rundir.folder import RunFolder
from launcher.rundir.history import parse_lines
from launcher.trackers.base import Line

BATCH = 1000


class _File:
    """A file that grows, and that a resume replaces with a shorter one."""

    def __init__(self, path: Path):
        self.path = path
        self._file: BufferedReader | None = None

    def read(self) -> tuple[list[Line], bool]:
        """Return the new lines, and whether they are all lines of a new file."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            is_gone = self._file is not None
            self.close()
            return [], is_gone
        is_new = self._file is None
        if self._file is not None:
            # While the old file is open, its inode is not reused.
            before = os.fstat(self._file.fileno())
            is_same = (now.st_ino, now.st_dev) == (before.st_ino, before.st_dev)
            is_new = not is_same or now.st_size < self._file.tell()
        if is_new:
            self.close()
            self._file = open_file(self.path)
        assert self._file is not None
        start = self._file.tell()
        content = self._file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._file.seek(start + len(complete))
        rows: Iterable[Line] = parse_lines(complete.splitlines())
        return [row for row in rows if isinstance(row.get("step"), int)], is_new

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


class MetricsReader:
    """The lines after a step, as they are written.

    The newest step is held back until a later one exists, since a run that is stopped during an
    evaluation writes the line of that step again, complete, when it resumes.
    """

    def __init__(self, folder: RunFolder, after: int):
        self.after = after
        self._metrics, self._media = _File(folder.metrics_path), _File(folder.path / "media.jsonl")
        self._lines: dict[int, Line] = {}
        self._items: dict[int, list[Line]] = {}

    def read(self, final: bool = False) -> list[Line]:
        """Return the next lines, at most 1000. The newest is among them if the run has ended."""
        self._read_files()
        newest = max(self._lines, default=-1)
        steps = sorted(
            step for step in self._lines.keys() | self._items.keys() if final or step < newest
        )[:BATCH]
        lines = []
        for step in steps:
            items = self._items.pop(step, [])
            line = self._lines.pop(step, None) or {"step": step, "time": items[0]["time"]}
            lines.append(line | {"media": items} if items else line)
            self.after = step
        return lines

    def close(self) -> None:
        self._metrics.close()
        self._media.close()

    def _read_files(self) -> None:
        """Read metrics first: once a step's line exists, the media of all earlier steps do too."""
        for row in self._read_new(self._metrics, self._lines):
            self._lines[row["step"]] = row
        for row in self._read_new(self._media, self._items):
            self._items.setdefault(row["step"], []).append(row)

    def _read_new(self, file: _File, pending: dict[int, Any]) -> list[Line]:
        rows, is_new = file.read()
        if is_new:
            pending.clear()
        return [row for row in rows if row["step"] > self.after]
