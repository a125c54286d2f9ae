"""Updates `run.json` while training, and reports what has changed since the previous attempt."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from launcher.config.identity import drift
from launcher.hooks.base import BaseHook, Records, TrainerView
from launcher.hooks.records import flatten
from launcher.run.record import RunRecord

OF_THE_ATTEMPT = ("trainer.pause_at",)
"""Keys that say what one attempt is to do, not what the run is."""


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


def changes_since(checkpoint: Path, config: dict[str, Any], code: dict[str, Any]) -> list[str]:
    """A sentence for each difference in configuration, code and versions between a checkpoint and now."""
    sentences: list[str] = []
    for name, present in (("config.yaml", config), ("code.yaml", code)):
        if (file := checkpoint / name).exists():
            sentences += drift(OmegaConf.to_container(OmegaConf.load(file)), present)  # type: ignore[arg-type]
    return [sentence for sentence in sentences if not sentence.startswith(OF_THE_ATTEMPT)]
