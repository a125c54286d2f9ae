"""Updates `run.json` during training, and reports what has changed since the checkpoint."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.checkpoint.changes import changes_since
from launcher.checkpoint.manifest import Manifest
from launcher.hooks.base import BaseHook, Records, RunContext, TrainerView
from launcher.hooks.records import flatten
from launcher.process.times import Times
from launcher.rundir.record import RunRecord
from launcher.rundir.record_format import BestData, ForkedFromData
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.rundir.sources import imported_sources

OF_THE_RUN = ("run", "paths")
"""Keys whose values always differ between runs."""


class RecordHook(BaseHook):
    """The first hook whose `on_ready` is called: all is restored then, and nothing is written yet.

    Args:
        config: the current resolved configuration, as a plain dict.
        code: the current git state and versions.
        begin: function that records that the attempt has begun.
    """

    record: RunRecord | None = None
    """Set on rank 0 before training."""
    launched: float
    """When the work on the run began (see `launcher.process.times`), set before training."""

    def __init__(self, config: dict[str, Any], code: dict[str, Any], begin: Callable[[], None]):
        self.config, self.code, self.begin = config, code, begin
        self._loss: Any = None
        self._is_ready = self._is_noted = self._is_started = False
        self.launched, self._times, self._shared = time.time(), Times(), RunContext().shared

    def bind(self, context: RunContext) -> None:
        self._times, self._shared = context.times, context.shared

    def on_ready(self, trainer: TrainerView) -> None:
        source = trainer.resumed_from
        shared = None if self._shared is None else self._shared.source
        is_fork = source is not None and shared is None and not is_own(source, trainer.workspace)
        if self.record is not None and source is not None and is_fork:
            self.record.data["forked_from"] = source_of(source, trainer.step)
        if self.record is not None and shared is not None:
            self.record.data["shared"] = self._shared.data()
        self.begin()
        if self.record is None:
            return
        self._is_ready = True
        ignored = OF_THE_RUN if is_fork else ()
        changes = (
            []
            if source is None or shared is not None
            else changes_since(source, self.config, self.code, imported_sources(), ignored)
        )
        for message in changes:
            trainer.logger.warning("Changed since the checkpoint: %s", message)
        if not is_fork and any(message.startswith("optimizer.") for message in changes):
            trainer.logger.warning(
                "The optimizer keeps the checkpoint's values. To change them: python -m"
                " launcher.runs fork."
            )

    def on_log(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        if self.record is None or dry_run:
            return
        self._loss = flatten(records).get("train/loss", self._loss)
        self._is_noted = False

    def on_before_step(self, trainer: TrainerView) -> None:
        if not self._is_started:
            self._is_started = True
            self._note_start()
        if not self._is_noted:
            # Only now has every hook seen the records of that step.
            self._note(trainer, trainer.step - 1)

    def on_close(self, trainer: TrainerView) -> None:
        self._note(trainer, trainer.step)

    def _note(self, trainer: TrainerView, step: int) -> None:
        if self.record is not None and self._is_ready:
            self.record.note_times(self._times.seconds)
            self.record.progress(step, loss=self._loss, best=_best(trainer))
        self._is_noted = True

    def _note_start(self) -> None:
        """Note the time until the first step, without an evaluation before it, as the start."""
        before = sum(self._times.seconds.values())
        self._times.seconds["starting"] = max(0.0, time.time() - self.launched - before)


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
    return {
        "metric": best.metric,
        "value": best.value,
        "step": best.step,
        "mode": best.mode,
    }
