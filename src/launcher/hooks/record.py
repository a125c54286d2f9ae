"""Updates `run.json` while training, and reports what has changed since the previous attempt."""

from typing import Any

from launcher.checkpoint.changes import changes_since
from launcher.hooks.base import BaseHook, Records, TrainerView
from launcher.hooks.records import flatten
from launcher.run.record import RunRecord


class RecordHook(BaseHook):
    """
    Args:
        record: None on ranks that write none.
        config: the current resolved configuration, as a plain dict.
        code: the current git state and versions.
    """

    def __init__(self, record: RunRecord | None, config: dict[str, Any], code: dict[str, Any]):
        self.record, self.config, self.code = record, config, code

    def on_ready(self, trainer: TrainerView) -> None:
        if self.record is None:
            return
        self.record.start_from(trainer.step)
        if trainer.resumed_from is not None:
            for sentence in changes_since(trainer.resumed_from, self.config, self.code):
                trainer.logger.warning("Changed since the checkpoint: %s", sentence)

    def on_log(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        if self.record is None or dry_run:
            return
        loss = next((value for name, value in flatten(records) if name == "train/loss"), None)
        self.record.progress(trainer.step, loss=loss, best=_best(trainer))

    def on_step_boundary(self, trainer: TrainerView) -> None:
        if self.record is not None and (trainer.is_last_step or trainer.is_paused):
            self.record.progress(trainer.step, best=_best(trainer))


def _best(trainer: TrainerView) -> dict[str, Any] | None:
    best = trainer.state.best
    if best is None or best.value is None:
        return None
    return {"metric": best.metric, "value": best.value, "step": best.step}
