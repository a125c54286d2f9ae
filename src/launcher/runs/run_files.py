"""The files that a listing reads of a run, each with what identifies its content."""

import os
import time

FILES = (
    "run.json",
    ".hydra/config.yaml",
    ".hydra/hydra.yaml",
    ".hydra/overrides.yaml",
    "metrics.jsonl",
    "submission.json",
)
"""What a listing knows of a run that has ended is from these."""
MISSING, UNREADABLE = "-", "?"
PIECE = 1 << 20


class RunFiles:
    """Reads a run's files, and remembers which content it was: each file is identified before it is read.

    Args:
        folder: the run's.
    """

    __slots__ = ("_marks", "changed", "folder", "opened")

    def __init__(self, folder: str):
        self.folder = folder
        self._marks: dict[str, str] = {}
        self.opened, self.changed = time.time(), 0.0
        """When this object was made, before any file was read, and when one of the files was last changed."""

    def read(self, name: str) -> bytes:
        """
        Raises:
            OSError: the file does not exist, or cannot be read.
        """
        try:
            file = os.open(f"{self.folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                status = os.fstat(file)
                self._mark(name, status)
                data = os.read(file, status.st_size + 1)  # one byte more would be a file that grows
                while len(data) != status.st_size and (more := os.read(file, PIECE)):
                    data += more
                return data
            finally:
                os.close(file)
        except OSError as error:
            is_missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
            self._marks[name] = MISSING if is_missing and name not in self._marks else UNREADABLE
            raise

    def look(self, name: str) -> os.stat_result | None:
        """Identify a file that is read elsewhere, or not at all; None: it does not exist."""
        try:
            status = os.stat(f"{self.folder}/{name}")
        except OSError:
            self._marks.setdefault(name, MISSING)
            return None
        self._mark(name, status)
        return status

    def _mark(self, name: str, status: os.stat_result) -> None:
        if name not in self._marks:
            self._marks[name] = f"{status.st_mtime_ns:x}.{status.st_size:x}.{status.st_ino:x}"
            self.changed = max(self.changed, status.st_mtime)

    def stamp(self) -> str | None:
        """What identifies the content of all files; None: one could not be read, and may be readable the next time."""
        for name in FILES:
            if name not in self._marks:
                self.look(name)
        marks = [self._marks[name] for name in FILES]
        return None if UNREADABLE in marks else " ".join(marks)

    def forget(self) -> None:
        """Free the memory of what was read."""
        self._marks = {}
