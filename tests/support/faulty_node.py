"""A hook with which a node computes wrong numbers. It is configured as a tracker, which is not part
of a run's identity."""

import os
from typing import Any

from launcher import BaseHook


class FaultyNode(BaseHook):
    """Adds noise to the loss of the last rank from step `step` on, in the first start of a SLURM
    job."""

    def __init__(self, step: int):
        self.step = step

    def on_before_train(self, trainer: Any) -> None:
        ranks = trainer.strategy.ranks
        if ranks.rank == ranks.world_size - 1 and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
            trainer.unwrapped_model.register_forward_hook(
                lambda module, inputs, output: (
                    self._noisy(output) if trainer.step >= self.step else None
                )
            )

    def _noisy(self, output: Any) -> Any:
        loss, records = output
        return loss * (1 + int.from_bytes(os.urandom(2)) / 2**20), records
