"""A file with lines of steps, such as `metrics.jsonl`, each once wherever a run is stopped."""

import errno
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.errors import TrainingError
from launcher.hooks.base import TrainerView
from launcher.process.files import fsync_file

Row = dict[str, Any]

logger = logging.getLogger(__name__)


class LineFile:
    """The rows of the current step, which are written before the next step.

    They are part of a checkpoint, so a run that was stopped during a step's evaluation writes them
    again, complete, when it resumes. Rows that cannot be written (the disk is full, say) are kept
    in memory and written with the next ones.
    """

    def __init__(self, path: Path, encode: Callable[[Row], str] = json.dumps):
        self.path, self.encode = path, encode
        self.rows: list[Row] = []
        self._is_reported = self._is_dirty = False

    def restore(self, rows: list[Row], trainer: TrainerView) -> None:
        """Take the rows of a checkpoint. A fork leaves out rows of the run that it starts from."""
        self.rows = [row for row in rows if not trainer.is_fork or row["step"] == trainer.step]

    def find_last_step(self, step: int) -> int:
        """Return the last step whose rows are in the file at a step, or are not logged at all."""
        return int(self.rows[0]["step"]) - 1 if self.rows else step

    def write_before(self, trainer: TrainerView) -> list[Row]:
        """Write the rows of earlier steps."""
        is_due = bool(self.rows) and self.rows[-1]["step"] < trainer.step
        return self.write(trainer) if is_due else []

    def write(self, trainer: TrainerView) -> list[Row]:
        """Append the rows, and return them, or none if that fails."""
        if not self.rows:
            return []
        data = "".join(f"{self.encode(row)}\n" for row in self.rows).encode()
        try:
            # Check just before the write, since a process that is suspended in between writes when
            # it wakes up.
            trainer.context.check_lock()
            append(self.path, data)
        except OSError as error:
            self.report(f"{self.path} cannot be written: {error}. Its lines are kept in memory.")
            return []
        written, self.rows = self.rows, []
        self._is_dirty = True
        return written

    def report(self, problem: str) -> None:
        """Log the first problem. The others follow from it."""
        if not self._is_reported:
            logger.error(problem)
        self._is_reported = True

    def sync(self, *folders: Path) -> None:
        """Make the lines durable, since a checkpoint must not outlive the lines before it."""
        if self._is_dirty:
            self._is_dirty = False
            for path in (self.path, *folders):
                try:
                    fsync_file(path)
                except OSError as error:
                    logger.warning("%s could not be synced: %s", path, error)

    def check_written(self) -> None:
        if self.rows:
            raise TrainingError(
                f"{len(self.rows)} lines of {self.path} could not be written. The last checkpoint"
                " has them: once the file can be written, the same command adds them."
            )


def append(path: Path, data: bytes) -> None:
    """Append text, all of it or nothing.

    Raises:
        OSError: nothing was written.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = os.fstat(fd).st_size
        try:
            if (count := os.write(fd, data)) < len(data):
                raise OSError(errno.ENOSPC, f"{count} of {len(data)} bytes were taken", str(path))
        except OSError:
            os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)
