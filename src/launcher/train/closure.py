"""Optimizers whose step computes loss and gradients itself (LBFGS)."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from launcher.run import ranks
from launcher.run.rng import restore_rng, rng_state

if TYPE_CHECKING:
    from launcher.train.trainer import BaseTrainer


def accumulate_for_closure(
    trainer: "BaseTrainer", micro_batches: Iterator[Any], accumulate: Callable[[Iterator[Any]], None]
) -> None:
    """Call `accumulate` so that the strategy can repeat it over the same batches, with the same random numbers."""
    start, kept = rng_state(), list(islice(micro_batches, trainer.gradient_accumulation_steps))

    def mean_loss() -> torch.Tensor:
        loss = torch.stack(trainer.step_info["loss"]).mean()
        return ranks.sum_over_ranks(loss) / ranks.world_size()

    def evaluate_again() -> torch.Tensor:
        first = {key: trainer.step_info[key] for key in ("loss", "records")}
        trainer.step_info |= {"loss": [], "records": []}
        restore_rng(start)
        trainer.strategy.zero_grad()
        accumulate(iter(kept))
        loss = mean_loss()
        trainer.step_info |= first
        return loss

    accumulate(iter(kept))
    trainer.strategy.closure = mean_loss(), evaluate_again
