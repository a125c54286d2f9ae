"""Updates `run.json` during training, and reports what has changed since the checkpoint."""

import time
from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path
from typing import Any

from launcher.checkpoint.drift import read_fingerprint
from launcher.checkpoint.manifest import Manifest
from launcher.hooks.base import BaseHook
from launcher.hooks.records import flatten
from launcher.hooks.view import Records, TrainerView
from launcher.process import times
from launcher.rundir.data_files import describe_changed_files
from launcher.rundir.record import RunRecord
from launcher.rundir.record_format import FIRST_STEP, PYTHON, STARTING, BestData, ForkedFromData
from launcher.rundir.run_on_disk import RunOnDisk

Changes = Callable[[Path, Collection[str]], list[str]]
RUN_KEYS = ("run", "paths")
"""Keys whose values always differ between runs."""


class RecordHook(BaseHook):
    """The first hook whose `on_ready` is called: all is restored then, and nothing is written yet.

    Args:
        begin: function that records that the attempt has begun.
        changes: function that lists what has changed since a checkpoint, but for further keys.
    """

    record: RunRecord | None = None
    """Set on rank 0 before training."""
    launched: float
    """When the work on the run began (see `launcher.process.times`), set before training."""

    def __init__(self, begin: Callable[[], None], changes: Changes):
        self.begin = begin
        self.changes = changes
        self._loss: Any = None
        self._is_ready = False
        self._is_noted = False
        self.launched = time.time()
        self._moments = [time.time()]
        self._begin_of_steps = 0.0

    def on_start(self, trainer: TrainerView) -> None:
        self._moments.append(time.time())

    def on_ready(self, trainer: TrainerView) -> None:
        self._moments.append(time.time())
        start, before = trainer.context.shared, None
        shared = None if start is None else start.data()
        # A shared start has compared its source.
        source = trainer.resumed_from if shared is None else None
        is_fork = source is not None and not is_own(source, trainer.workspace)
        if self.record is not None:
            before = self.record.data.get("data_files")
            if shared is not None:
                self.record.data["shared"] = shared
            if source is not None and is_fork:
                self.record.data["forked_from"] = source_of(source, trainer.step)
        self.begin()
        self._is_ready = self.record is not None
        if self.record is not None and source is not None:
            now = self.record.data.get("data_files")
            files = describe_changed_files(before, now, read_fingerprint(source))
            self._report_changes(trainer, source, is_fork, files)

    def _report_changes(
        self, trainer: TrainerView, source: Path, is_fork: bool, files: list[str]
    ) -> None:
        ignored = RUN_KEYS if is_fork else ()
        for message in [*self.changes(source, ignored), *files]:
            trainer.logger.warning("Changed since the checkpoint: %s", message)

    def on_log(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        if not dry_run:
            self._loss = flatten(records).get("train/loss", self._loss)
            self._is_noted = False

    def on_before_step(self, trainer: TrainerView) -> None:
        seconds = trainer.context.times.seconds
        if "starting" not in seconds:
            # An evaluation before the first step is not part of the start.
            waited = time.time() - self.launched - sum(seconds.values())
            ends = zip(STARTING, pairwise([self.launched, *self._moments]), strict=False)
            seconds |= {name: max(0.0, after - before) for name, (before, after) in ends}
            if python := times.python_time():
                seconds[PYTHON] = python
                seconds["imports"] = max(0.0, seconds["imports"] - python)
            seconds["starting"] = max(0.0, waited)
            self._begin_of_steps = time.time() - _waited(seconds)
        elif FIRST_STEP not in seconds:
            self._note_first_step(seconds)
        if not self._is_noted:
            # Only now has every hook seen the records of that step.
            self._note(trainer, trainer.step - 1)

    def _note_first_step(self, seconds: dict[str, float]) -> None:
        seconds[FIRST_STEP] = max(0.0, time.time() - self._begin_of_steps - _waited(seconds))

    def on_close(self, trainer: TrainerView) -> None:
        seconds = trainer.context.times.seconds
        if "starting" in seconds and FIRST_STEP not in seconds:
            self._note_first_step(seconds)
        self._note(trainer, trainer.step)

    def _note(self, trainer: TrainerView, step: int) -> None:
        if self.record is not None and self._is_ready:
            self.record.note_times(trainer.context.times.seconds)
            if (unstored := trainer.context.unstored) is not None:
                has_any = unstored["lost"] or unstored["changed"] or unstored["is_cut"]
                self.record.data["unstored"] = unstored if has_any else None
            self.record.progress(step, loss=self._loss, best=_best(trainer))
        self._is_noted = True


def _waited(seconds: dict[str, float]) -> float:
    return seconds.get("evaluating", 0.0) + seconds.get("saving", 0.0)


def is_own(checkpoint: Path, workspace: Path | None) -> bool:
    """Return whether a checkpoint was written by the run in a workspace."""
    if workspace is None or checkpoint.resolve().is_relative_to(workspace.resolve()):
        return True
    return Manifest.read(checkpoint).run in RunOnDisk.read(workspace).names


def source_of(checkpoint: Path, step: int) -> ForkedFromData:
    """Return the run that a checkpoint belongs to: its id, its name and the step."""
    if run := Manifest.read(checkpoint).run:
        name, _, run_id = run.rpartition("/")
        return {"id": run_id, "name": name, "step": step}
    owner = RunOnDisk.read(checkpoint.absolute().parents[1])
    return {"id": owner.id, "name": owner.name, "step": step}


def _best(trainer: TrainerView) -> BestData | None:
    best = trainer.state.best
    if best is None or best.value is None:
        return None
    return {"metric": best.metric, "value": best.value, "step": best.step, "mode": best.mode}
