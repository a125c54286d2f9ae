"""Writes `metrics.jsonl`: one line for each logged step, no step twice."""

import errno
import json
import logging
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from launcher.errors import TrainingError
from launcher.hooks.base import BaseHook, Records, RunContext, TrainerView
from launcher.hooks.logging import LoggingHook
from launcher.hooks.records import flatten, to_number
from launcher.process import ranks
from launcher.rundir.files import fsync_file
from launcher.rundir.folder import place_of
from launcher.rundir.metrics import last_step
from launcher.rundir.step_lines import drop_lines_after, keep_lines_after
from launcher.types import NonEmptyText

logger = logging.getLogger(__name__)


class JsonlHook(BaseHook):
    """Collects the records of a step and appends them as one line before the next step.

    The line of the current step is part of the checkpoint, so a run that was stopped during a
    step's evaluation rewrites that line, complete, when it resumes. Lines of steps after the
    checkpoint are dropped then. Lines that cannot be written (the disk is full, say) are kept in
    memory and written with the next line.

    Args:
        path: relative to the workspace. Outside it, the file is in a folder `<name>/<id>` there.
        keep_dropped: keep the lines that a resume drops in a hidden file next to it. A tracker that
            already has them can find out whether they are computed again with the same values.
    """

    def __init__(
        self,
        path: NonEmptyText = "metrics.jsonl",
        clock: Callable[[], float] = time.time,
        keep_dropped: bool = False,
    ):
        self.path, self.keep_dropped = Path(path), keep_dropped
        self._attempt = 1
        self._clock = clock
        self._line: dict[str, Any] | None = None
        self._unwritten: list[dict[str, Any]] = []
        self._advice = "Add LoggingHook()."
        self._is_reported = self._is_dirty = False
        self._count = self._last = 0
        self._saved_lines: dict[str, Any] = {}
        self._is_fork = False
        self._check_lock, self._shared = RunContext().check_lock, RunContext().shared
        self._writes = True

    def bind(self, context: RunContext) -> None:
        self._attempt, self._check_lock = context.attempt, context.check_lock
        self._shared = context.shared
        self._is_fork = context.fork is not None
        self._advice = (
            "Choose hooks=[default]." if "config.yaml" in context.texts else "Add LoggingHook()."
        )

    def on_start(self, trainer: TrainerView) -> None:
        self._writes = ranks.rank() == 0
        self.path = place_of(trainer.workspace, self.path, is_file=True)
        if self._writes:
            self.path.parent.mkdir(parents=True, exist_ok=True)

    def on_ready(self, trainer: TrainerView) -> None:
        if not self._writes:
            self._unwritten.clear()
        else:
            self._check_lock()
            kept = [*self._unwritten, *([self._line] if self._line else [])]
            last = kept[0]["step"] - 1 if kept else trainer.step
            if self.keep_dropped:
                keep_lines_after(self.path, last)
            self._count = drop_lines_after(self.path, last)
            self._last = last_step(self.path)
            self._report_missing(trainer)

    def _report_missing(self, trainer: TrainerView) -> None:
        expected, of = self._saved_lines.get("count", 0), self._saved_lines.get("of")
        if of == self._name() and self._count < expected:
            trainer.logger.error(
                "%s has %d of the %d lines that the checkpoint of step %d records; the others are"
                " lost.",
                self.path,
                self._count,
                expected,
                trainer.step,
            )
        is_whole = (self._count, self._last) == (expected, self._saved_lines.get("last"))
        if of not in (None, self._name()) and not is_whole and not self._is_fork:
            trainer.logger.warning(
                "%s has no lines of the steps that the run %s trained, up to step %d. `python -m"
                " launcher.runs fork` starts a new run from a checkpoint, and records which.",
                self.path,
                of,
                trainer.step,
            )

    def _name(self) -> str:
        return self.path.absolute().parent.name

    def on_log(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        numbers = {
            name: number
            for name, value in flatten(records).items()
            if type(number := value) is float
            or isinstance(number := to_number(value), (int, float))
        }
        if dry_run:
            trainer.logger.info("Would write to %s: %s", self.path, numbers)
            return
        if self._line is None or self._line["step"] != trainer.step:
            self._flush()
            self._line = {"step": trainer.step, "time": self._clock(), "attempt": self._attempt}
            if trainer.samples is not None:
                self._line["samples"] = trainer.samples
                # A resume that begins with a new loader counts passes over it from zero.
                if trainer.state.num_epochs is not None:
                    self._line["epoch"] = trainer.state.epoch
        self._line |= numbers

    def on_before_step(self, trainer: TrainerView) -> None:
        if self._unwritten or (self._line is not None and self._line["step"] < trainer.step):
            self._flush()

    def on_close(self, trainer: TrainerView) -> None:
        self._flush()
        check_written(self.path, len(self._unwritten))
        if self._writes and trainer.step and not self._count and not _logs_training(trainer):
            trainer.logger.warning(
                "%s was not written: nothing was logged. %s", self.path, self._advice
            )

    def on_state_dict(self, trainer: TrainerView, state_dict: dict[str, Any]) -> None:
        if self._is_dirty:
            # A checkpoint must not outlive the lines before it.
            sync(self.path)
            self._is_dirty = False
        line = dict(self._line) if self._line else None
        unwritten = [dict(each) for each in self._unwritten]
        lines = {"count": self._count, "last": self._last, "of": self._name()}
        state_dict["jsonl"] = {"line": line, "unwritten": unwritten, "lines": lines}

    def on_load_state_dict(self, trainer: TrainerView, state_dict: dict[str, Any]) -> None:
        saved = state_dict.get("jsonl", {})
        self._line, self._unwritten = saved.get("line"), list(saved.get("unwritten", ()))
        if trainer.is_fork:
            # The others belong to the run that it starts from.
            self._unwritten = []
        self._saved_lines = saved.get("lines", {})
        if self._line is not None and self._shared is not None and self._shared.source is not None:
            self._line |= {"attempt": 0}

    def _flush(self) -> None:
        line, self._line = self._line, None
        if not self._writes:
            return
        if line is not None:
            self._unwritten.append(line)
        if not self._unwritten:
            return
        data = "".join(f"{encoded(line)}\n" for line in self._unwritten).encode()
        try:
            # Check just before the write, since a process that is suspended in between writes when
            # it wakes up.
            self._check_lock()
            append(self.path, data)
        except OSError as error:
            if not self._is_reported:
                logger.error(
                    "%s cannot be written: %s. Its lines are kept in memory and written as soon as"
                    " possible.",
                    self.path,
                    error,
                )
            self._is_reported = True
        else:
            self._count += len(self._unwritten)
            self._last = self._unwritten[-1]["step"]
            self._unwritten.clear()
            self._is_dirty = True


def _logs_training(trainer: TrainerView) -> bool:
    return any(isinstance(hook, LoggingHook) for hook in trainer.hooks)


def check_written(path: Path, missing: int) -> None:
    if missing:
        raise TrainingError(
            f"{missing} lines of {path} could not be written. The last checkpoint has them: once"
            " the file can be written, the same command adds them."
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


def sync(path: Path) -> None:
    """Sync the file. If that fails, training continues without these lines on disk."""
    try:
        fsync_file(path)
    except OSError as error:
        logger.warning("%s could not be synced: %s", path, error)


def encoded(line: dict[str, Any]) -> str:
    """Encode a line. JSON has no NaN and infinity, so they become strings."""
    try:
        if math.isfinite(sum(line.values())):
            # It takes a tenth of the time of json.
            return orjson.dumps(line).decode()
    # An integer has more than 64 bits.
    except (TypeError, OverflowError):
        pass
    is_odd = {
        key: isinstance(value, float) and not math.isfinite(value) for key, value in line.items()
    }
    return json.dumps({key: str(value) if is_odd[key] else value for key, value in line.items()})
