"""Keeps `run.json` in step with training, and says what has changed since the attempt before."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from launcher.config.identity import drift
from launcher.hooks.base import BaseHook, Records
from launcher.hooks.checkpointing import CheckpointingHook
from launcher.hooks.records import flatten
from launcher.run.record import RunRecord


class RecordHook(BaseHook):
    """
    Args:
        record: None on ranks that write none.
        config: the present resolved configuration, as a plain dict.
        code: the present git state and versions.
    """

    def __init__(self, record: RunRecord | None, config: dict[str, Any], code: dict[str, Any], attempt: int):
        self.record, self.config, self.code, self.attempt = record, config, code, attempt

    def on_before_train(self, trainer: Any) -> None:
        for hook in trainer.hooks:
            if hasattr(hook, "attempt"):
                hook.attempt = self.attempt
        if self.record is None:
            return
        self.record.start_from(trainer.step)
        source = self._checkpointing(trainer)
        if source is not None and source.resumed_from is not None:
            for sentence in self._drift(source.resumed_from):
                trainer.logger.warning("Changed since the checkpoint: %s", sentence)

    def on_log(self, trainer: Any, records: Records, dry_run: bool = False) -> None:
        if self.record is None or dry_run:
            return
        loss = next((value for name, value in flatten(records) if name == "train/loss"), None)
        self.record.progress(trainer.step, loss=loss, best=self._best(trainer))

    def _best(self, trainer: Any) -> dict[str, Any] | None:
        source = self._checkpointing(trainer)
        if source is None or source.best is None or source.best.value is None:
            return None
        return {"metric": source.best.metric, "value": source.best.value, "step": source.best.step}

    def on_step_boundary(self, trainer: Any) -> None:
        if self.record is not None and trainer.is_last_step:
            self.record.progress(trainer.step, best=self._best(trainer))

    def _checkpointing(self, trainer: Any) -> CheckpointingHook | None:
        return next((hook for hook in trainer.hooks if isinstance(hook, CheckpointingHook)), None)

    def _drift(self, checkpoint: Path) -> list[str]:
        """Configuration, code and versions then and now."""
        sentences: list[str] = []
        if (file := checkpoint / "config.yaml").exists():
            saved = OmegaConf.to_container(OmegaConf.load(file))
            sentences += drift(saved, self.config)  # type: ignore[arg-type]
        if (file := checkpoint / "code.yaml").exists():
            sentences += drift(OmegaConf.to_container(OmegaConf.load(file)), self.code)  # type: ignore[arg-type]
        return sentences
