"""Logs a line at the end of each epoch."""

from typing import Any

from launcher.hooks.base import BaseHook, Records, TrainerView
from launcher.hooks.interval import steps_per_epoch
from launcher.hooks.records import flatten, show, to_numbers
from launcher.process import ranks


class EpochSummaryHook(BaseHook):
    """Logs each epoch's mean training loss over all ranks, and its last validation metrics."""

    def __init__(self) -> None:
        self._total: Any = 0.0
        self._steps = 0
        self._val: tuple[int, Records] = (-1, {})

    def on_after_step(self, trainer: TrainerView) -> None:
        losses = trainer.step_info["loss"]
        self._total = self._total + sum(loss.double() for loss in losses) / len(losses)
        self._steps += 1

    def on_log(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        if "val" in records and not dry_run:
            self._val = trainer.step, to_numbers(records["val"])

    def on_epoch_end(self, trainer: TrainerView) -> None:
        length = steps_per_epoch(trainer) or 1
        means = ranks.all_gather(float(self._total) / max(self._steps, 1))
        values = {"train/loss": sum(means) / len(means)}
        if self._val[0] == trainer.step:
            values |= flatten(self._val[1], "val/")
        trainer.logger.info(
            "Epoch %d/%d, step %d: %s",
            trainer.step // length,
            trainer.max_steps // length,
            trainer.step,
            " ".join(f"{name} {show(value)}" for name, value in values.items()),
        )
        self._total, self._steps = 0.0, 0

    def on_state_dict(self, trainer: TrainerView, state_dict: dict[str, Any]) -> None:
        state_dict["epochs"] = {"total": float(self._total), "steps": self._steps}

    def on_load_state_dict(self, trainer: TrainerView, state_dict: dict[str, Any]) -> None:
        saved = state_dict.get("epochs", {})
        self._total, self._steps = saved.get("total", 0.0), saved.get("steps", 0)
