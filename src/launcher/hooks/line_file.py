"""A file with lines of steps, such as `metrics.jsonl`, each once wherever a run is stopped."""

import errno
import json
import logging
import math
import os
from pathlib import Path
from typing import Any, ClassVar

import orjson

from launcher.errors import TrainingError
from launcher.hooks.base import BaseHook
from launcher.hooks.view import State, TrainerView
from launcher.process import ranks
from launcher.process.files import fsync_file
from launcher.rundir.step_lines import drop_lines_after

Row = dict[str, Any]

logger = logging.getLogger(__name__)


class LineFileHook(BaseHook):
    """Keeps the rows of the current step, and writes them before the next step.

    They are part of a checkpoint, so a run that was stopped during a step's evaluation writes them
    again, complete, when it resumes. Rows that cannot be written (the disk is full, say) are kept
    in memory and written with the next ones.
    """

    provides = ()
    key: ClassVar[str]
    """The key of the rows in a checkpoint."""
    name: ClassVar[str]
    """The name of the file in the workspace."""
    once: ClassVar[bool] = True
    """A step has one line."""

    def __init__(self) -> None:
        self.path = Path(self.name)
        self.rows: list[Row] = []
        self._count = 0
        """Number of lines in the file."""
        self._is_reported = False
        self._is_dirty = False

    def on_start(self, trainer: TrainerView) -> None:
        self.path = (trainer.workspace or Path()) / self.name
        if ranks.rank() == 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)

    def on_ready(self, trainer: TrainerView) -> None:
        """Drop the lines of the steps that come, or whose rows are written again."""
        if ranks.rank() == 0:
            trainer.context.check_lock()
            last = int(self.rows[0]["step"]) - 1 if self.rows else trainer.step
            self._count = drop_lines_after(self.path, last, self.once)

    def on_before_step(self, trainer: TrainerView) -> None:
        if self.rows and self.rows[-1]["step"] < trainer.step:
            self.write(trainer)

    def on_close(self, trainer: TrainerView) -> None:
        if self.rows:
            self.write(trainer)
        if self.rows:
            raise TrainingError(
                f"{len(self.rows)} lines of {self.path} could not be written. The last checkpoint"
                " has them: once the file can be written, the same command adds them."
            )

    def on_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        self.sync(self.path)
        state_dict[self.key] = {"rows": [dict(row) for row in self.rows]}

    def on_load_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        # A fork leaves out rows of the run that it starts from.
        self.rows = [
            row
            for row in state_dict.get(self.key, {}).get("rows", [])
            if ranks.rank() == 0 and (not trainer.is_fork or row["step"] == trainer.step)
        ]

    def write(self, trainer: TrainerView) -> None:
        """Append the rows. If that fails, they are kept."""
        data = "".join(f"{encode_line(row)}\n" for row in self.rows).encode()
        try:
            # Check just before the write, since a process that is suspended in between writes when
            # it wakes up.
            trainer.context.check_lock()
            append(self.path, data)
        except OSError as error:
            self.report(f"{self.path} cannot be written: {error}. Its lines are kept in memory.")
            return
        self._count += len(self.rows)
        self._is_dirty = True
        self.rows.clear()

    def report(self, problem: str) -> None:
        """Log the first problem. The others follow from it."""
        if not self._is_reported:
            logger.error(problem)
        self._is_reported = True

    def sync(self, *paths: Path) -> None:
        """Make the lines durable, since a checkpoint must not outlive the lines before it."""
        if not self._is_dirty:
            return
        for path in paths:
            try:
                fsync_file(path)
            except OSError as error:
                logger.warning("%s could not be synced: %s", path, error)
        self._is_dirty = False


def encode_line(row: Row) -> str:
    """Encode a line. JSON has no NaN and infinity, so they become strings."""
    try:
        if math.isfinite(sum(row.values())):
            # `orjson` takes a tenth of the time of json.
            return orjson.dumps(row).decode()
    # The row has other values than numbers, or an integer of more than 64 bits.
    except (TypeError, OverflowError):
        pass
    is_odd = {
        key: isinstance(value, float) and not math.isfinite(value) for key, value in row.items()
    }
    values = {key: str(value) if is_odd[key] else value for key, value in row.items()}
    return json.dumps(values, separators=(",", ":"))


def append(path: Path, data: bytes) -> None:
    """Append text, all of it or nothing.

    Raises:
        OSError: nothing was written.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = os.fstat(fd).st_size
        try:
            count = os.write(fd, data)
            if count < len(data):
                raise OSError(errno.ENOSPC, f"{count} of {len(data)} bytes were taken", str(path))
        except OSError:
            os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)
