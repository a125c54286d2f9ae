"""Faults on one rank, and what all ranks report, as tasks (see `drive`)."""

import logging
import time
from pathlib import Path
from typing import Any

import torch

from launcher.hooks.watchdog import WatchdogHook
from support.trainings import Journal, build, is_last


def messages(trainer: Any, level: int) -> list[str]:
    """Train; return what is logged from a level on."""
    lines: list[str] = []
    handler = logging.Handler(level)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("launcher").addHandler(handler)
    trainer.train()
    logging.getLogger("launcher").removeHandler(handler)
    trainer.strategy.teardown()
    return lines


def broken(folder: str, overrides: list[str]) -> list[str]:
    """The last rank has a NaN in its middle block in step 3; the reports of that."""
    trainer = build(Path(folder), overrides, Journal())

    def spoil_output(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor | None:
        return output * float("nan") if trainer.step == 3 and is_last(trainer) else None

    trainer.unwrapped_model.blocks[1].ffn.up.register_forward_hook(spoil_output)
    lines = messages(trainer, logging.WARNING)
    return [line for line in lines if ", rank " in line]


def stalled(folder: str, overrides: list[str]) -> list[str]:
    """The last rank hangs in step 5. Returns the errors that this rank logs."""
    trainer = build(Path(folder), overrides, journal := Journal())
    (watchdog,) = [hook for hook in trainer.hooks if isinstance(hook, WatchdogHook)]

    def hang_in_step_5(trainer: Any, batch: Any) -> None:
        if trainer.step == 5 and is_last(trainer):
            time.sleep(2 * watchdog.limit)

    journal.on_batch = hang_in_step_5  # type: ignore[method-assign]
    return messages(trainer, logging.ERROR)


def overflow(folder: str, overrides: list[str]) -> dict[str, Any]:
    """The last rank's loss is infinite in step 2, once."""
    journal = Journal()
    trainer = build(Path(folder), overrides, journal)
    forward, done = trainer.forward, []

    def spoiled(batch: Any) -> Any:
        loss, records = forward(batch)
        if trainer.step == 2 and not done and is_last(trainer):
            done.append(True)
            loss = loss * float("inf")
        return loss, records

    trainer.forward = spoiled  # type: ignore[method-assign]
    trainer.train()
    scale = trainer.strategy.snapshot().meta.get("loss_scaler", {}).get("cur_scale")
    result = {"skipped": trainer.state.skipped_steps, "samples": trainer.samples}
    trainer.strategy.teardown()
    scales = {"scale": trainer.grad_scaler.get_scale(), "loss_scale": scale}
    return {**result, **scales, "losses": journal.losses}


def none_loss(folder: str, overrides: list[str]) -> int:
    """The last step; the last rank's forward gives no loss in step 2, once, without having called
    the model."""
    trainer = build(Path(folder), overrides, Journal())
    forward, done = trainer.forward, []

    def sometimes(batch: Any) -> Any:
        if trainer.step == 2 and not done and is_last(trainer):
            done.append(True)
            return None, {}
        return forward(batch)

    trainer.forward = sometimes  # type: ignore[method-assign]
    trainer.train()
    trainer.strategy.teardown()
    return trainer.step
