"""A hook whose state no checkpoint has."""

from typing import Any

from launcher import BaseHook


class Warmup(BaseHook):
    """Scales gradients by the number of steps that this process has made."""

    def __init__(self) -> None:
        self.count = 0

    def on_before_optimizer_step(self, trainer: Any) -> None:
        self.count += 1
        for weight in trainer.model.parameters():
            weight.grad.mul_(1 / self.count)
