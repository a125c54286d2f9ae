"""Decide whether a strategy can leave out the backward pass of a batch without a loss."""

import warnings

from launcher.errors import TrainingError
from launcher.process.ranks import world_size
from launcher.strategies.base import Strategy
from launcher.strategies.weights import needs_backward


class LossNoneWarning(UserWarning):
    """`forward` returned no loss, under a wrapper that needs a backward pass after each one."""


def check_missing_loss(strategy: Strategy, step: int) -> None:
    """Check that this rank may leave out a backward pass."""
    if strategy.lanes is not None:
        raise TrainingError(
            f"Step {step}: forward returned no loss on rank {strategy.ranks.rank}. With"
            " trainer.lanes each lane counts, so each batch needs a loss: return a loss multiplied"
            " by 0, or use trainer.lanes=null."
        )
    if world_size() > 1 and strategy.forward_is_collective:
        raise TrainingError(
            f"Step {step}: forward returned no loss on rank {strategy.ranks.rank}. Under"
            f" strategy={strategy.name} the ranks' forward and backward passes wait for each other,"
            " so each needs a loss for every batch: return a loss multiplied by 0, or use"
            " strategy=ddp."
        )
    if needs_backward(strategy.model):
        warnings.warn(
            "The loss is None: no backward pass follows. Do not call the wrapped model's forward"
            " for such a batch; DDP and FSDP expect each forward to be followed by a backward.",
            LossNoneWarning,
            stacklevel=2,
        )
