"""Skipped updates and missing losses: they are counted and logged, and too many of them end the training."""

import logging
import warnings
from typing import TYPE_CHECKING, Any

from launcher.errors import TrainingError
from launcher.hooks.records import format_records
from launcher.run.ranks import world_size
from launcher.strategies.weights import needs_backward

if TYPE_CHECKING:
    from launcher.train.trainer import BaseTrainer


class LossNoneWarning(UserWarning):
    """`forward` returned no loss, under a wrapper that needs a backward pass after each forward pass."""


def count_skipped(trainer: "BaseTrainer") -> None:
    """Count and log a skipped update: the gradient of the last step was not finite.

    Raises:
        TrainingError: there were more than `max_skipped_steps` in a row.
    """
    state = trainer.state
    state.skipped_steps += 1
    state.skipped_in_row += 1
    if state.skipped_in_row & (state.skipped_in_row - 1) == 0:  # the 1st, 2nd, 4th, 8th ... in a row
        trainer.logger.log(
            logging.INFO if trainer.grad_scaler.is_enabled() else logging.WARNING,  # how a scaler finds its scale
            "Step %d: the gradient is not finite (%s); the update is skipped (%d in a row).",
            state.step, losses_of(trainer.step_info), state.skipped_in_row,
        )  # fmt: skip
    if state.skipped_in_row > trainer.max_skipped_steps:
        raise TrainingError(
            f"The gradient was not finite in {state.skipped_in_row} steps in a row (max_skipped_steps="
            f"{trainer.max_skipped_steps}); last: {losses_of(trainer.step_info)}. Lower the learning rate or check the "
            "data."
        )


def check_end(trainer: "BaseTrainer") -> None:
    """
    Raises:
        TrainingError: the last step's update was skipped.
    """
    if trainer.update_was_skipped():
        raise TrainingError(
            f"Training ended with {trainer.state.skipped_in_row} skipped updates in a row: the gradient was "
            f"not finite ({losses_of(trainer.step_info)}). This state is not saved. Lower the learning rate or check "
            "the data."
        )


def count_retry(trainer: "BaseTrainer") -> None:
    """Count and log that the gradient of this attempt at a step was not finite; the next one uses new batches.

    Raises:
        TrainingError: there were `max_non_finite_grad_retries` already.
    """
    step, info = trainer.state.step, trainer.step_info
    count, bound = info["non_finite_grad_retry_count"], trainer.max_non_finite_grad_retries or 0
    if count >= bound:
        raise TrainingError(
            f"Step {step}: the gradient is not finite after {count} of {bound} retries "
            f"(max_non_finite_grad_retries); last: {losses_of(info)}."
        )
    trainer.logger.warning(
        "Step %d: the gradient is not finite (%s); retry %d/%d with new batches.",
        step, losses_of(info), count + 1, bound,
    )  # fmt: skip
    info |= {"loss": [], "records": [], "non_finite_grad_retry_count": count + 1}


def check_none_losses(trainer: "BaseTrainer", in_row: int) -> None:
    """Check that training may continue after `forward` has returned no loss for `in_row` batches in a row.

    Raises:
        TrainingError: there were more than `max_none_losses`, or the other ranks wait for this one's backward pass.
    """
    step = trainer.state.step
    if world_size() > 1 and trainer.strategy.forward_is_collective:
        raise TrainingError(
            f"Step {step}: forward returned no loss on rank {trainer.strategy.ranks.rank}. Under "
            f"strategy={trainer.strategy.name} the ranks' forward and backward passes wait for each other, so each "
            "needs a loss for every batch: return a loss multiplied by 0, or use strategy=ddp."
        )
    if needs_backward(trainer.model):
        warnings.warn(
            "The loss is None: no backward pass follows. Do not call the wrapped model's forward for such a batch; "
            "DDP and FSDP expect each forward to be followed by a backward.",
            LossNoneWarning,
            stacklevel=2,
        )
    if in_row > trainer.max_none_losses:
        raise TrainingError(
            f"Step {step}: forward returned no loss {in_row} times in a row "
            f"(max_none_losses={trainer.max_none_losses})."
        )


def losses_of(step_info: dict[str, Any]) -> str:
    """The losses and records of a step, for a message."""
    losses = ", ".join(f"{float(loss):.6g}" for loss in step_info["loss"])
    records = "; ".join(filter(None, map(format_records, step_info["records"])))
    return f"loss {losses}" + (f"; {records}" if records else "")
