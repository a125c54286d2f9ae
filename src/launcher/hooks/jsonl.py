"""Writes `metrics.jsonl`: one line for each logged step, no step twice."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from launcher.hooks.base import BaseHook, Records, TrainerView
from launcher.hooks.line_file import LineFile
from launcher.hooks.logging import LoggingHook
from launcher.hooks.records import flatten, to_number
from launcher.process import ranks
from launcher.rundir.folder import place_of
from launcher.rundir.metrics_summary import last_step
from launcher.rundir.step_lines import drop_lines_after
from launcher.types import NonEmptyText


class JsonlHook(BaseHook):
    """Collects the records of a step and appends them as one line before the next step.

    See `LineFile`. A resume drops the lines of steps after the checkpoint.

    Args:
        path: relative to the workspace. Outside it, the file is in a folder `<name>/<id>` there.
    """

    def __init__(
        self,
        path: NonEmptyText = "metrics.jsonl",
        clock: Callable[[], float] = time.time,
    ):
        self.path, self._clock = Path(path), clock
        self._file = LineFile(self.path, encode_line)
        self._count = self._last = 0
        """Number of lines in the file, and the step of its last one."""
        self._saved: dict[str, Any] = {}

    def on_start(self, trainer: TrainerView) -> None:
        self.path = self._file.path = place_of(trainer.workspace, self.path, is_file=True)
        if ranks.rank() == 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)

    def on_ready(self, trainer: TrainerView) -> None:
        if ranks.rank() != 0:
            return
        trainer.context.check_lock()
        last = self._file.find_last_step(trainer.step)
        self._count = drop_lines_after(self.path, last)
        self._last = last_step(self.path)
        self._report_missing(trainer)

    def _report_missing(self, trainer: TrainerView) -> None:
        expected, run = self._saved.get("count", 0), self._saved.get("run")
        if run == self._run() and self._count < expected:
            trainer.logger.error(
                "%s has %d of the %d lines that the checkpoint of step %d records; the others are"
                " lost.",
                self.path,
                self._count,
                expected,
                trainer.step,
            )
        is_complete = (self._count, self._last) == (expected, self._saved.get("last"))
        is_fork = trainer.context.fork is not None
        if run not in (None, self._run()) and not is_complete and not is_fork:
            trainer.logger.warning(
                "%s has no lines of the steps that the run %s trained, up to step %d. `python -m"
                " launcher.runs fork` starts a new run from a checkpoint, and records which.",
                self.path,
                run,
                trainer.step,
            )

    def _run(self) -> str:
        return self.path.absolute().parent.name

    def on_log(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        # On all ranks, since reading a sharded tensor is collective.
        values = {
            name: value if type(value) is float else to_number(value)
            for name, value in flatten(records).items()
        }
        numbers = {name: value for name, value in values.items() if isinstance(value, (int, float))}
        if ranks.rank() != 0:
            return
        if dry_run:
            trainer.logger.info("Would write to %s: %s", self.path, numbers)
            return
        self._write_before(trainer)
        rows = self._file.rows
        if not rows or rows[-1]["step"] != trainer.step:
            rows.append(self._begin_line(trainer))
        rows[-1] |= numbers

    def _begin_line(self, trainer: TrainerView) -> dict[str, Any]:
        line = {"step": trainer.step, "time": self._clock(), "attempt": trainer.context.attempt}
        if trainer.samples is not None:
            line["samples"] = trainer.samples
            # A resume that begins with a new loader counts passes over it from zero.
            if trainer.state.num_epochs is not None:
                line["epoch"] = trainer.state.epoch
        return line

    def on_before_step(self, trainer: TrainerView) -> None:
        if self._file.rows:
            self._write_before(trainer)

    def _write_before(self, trainer: TrainerView) -> None:
        self._note_written(self._file.write_before(trainer))

    def _note_written(self, written: list[dict[str, Any]]) -> None:
        if written:
            self._count, self._last = self._count + len(written), written[-1]["step"]

    def on_close(self, trainer: TrainerView) -> None:
        self._note_written(self._file.write(trainer))
        self._file.check_written()
        is_empty = ranks.rank() == 0 and trainer.step and not self._count
        if is_empty and not any(isinstance(hook, LoggingHook) for hook in trainer.hooks):
            advice = "Choose hooks=[default]." if trainer.context.texts else "Add LoggingHook()."
            trainer.logger.warning("%s was not written: nothing was logged. %s", self.path, advice)

    def on_state_dict(self, trainer: TrainerView, state_dict: dict[str, Any]) -> None:
        self._file.sync()
        rows = [dict(row) for row in self._file.rows]
        lines = {"count": self._count, "last": self._last, "run": self._run()}
        state_dict["jsonl"] = {"rows": rows, "lines": lines}

    def on_load_state_dict(self, trainer: TrainerView, state_dict: dict[str, Any]) -> None:
        if ranks.rank() != 0:
            return
        saved = state_dict.get("jsonl", {})
        self._file.restore(saved.get("rows", []), trainer)
        self._saved = saved.get("lines", {})
        shared = trainer.context.shared
        if self._file.rows and shared is not None and shared.source is not None:
            self._file.rows[-1]["attempt"] = 0


def encode_line(line: dict[str, Any]) -> str:
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
