"""`strategy=none` for a model that steps its own optimizers."""

from contextlib import AbstractContextManager
from typing import Any

import torch

from launcher.errors import ConfigError
from launcher.strategies.base import Strategy
from launcher.strategies.none import NoStrategy
from launcher.strategies.step import StepResult


def leave_steps(strategy: Strategy) -> Strategy:
    """Return the strategy of a model with `owns_optimizers`, in place of `strategy=none`."""
    if type(strategy) is not NoStrategy:
        raise ConfigError(
            f"strategy={strategy.name}: the model steps its own optimizers (owns_optimizers); use"
            " strategy=none."
        )
    return OwnSteps()


class OwnSteps(NoStrategy):
    """The forward pass makes the step, so nothing follows it."""

    needs_graph = False

    def forward_context(self) -> AbstractContextManager[Any]:
        if self.before_clip is not None or self.veto is not None:
            raise ConfigError(
                f"hooks: {type(self.model).__name__} steps its own optimizers (owns_optimizers), so"
                " there is no moment between its gradients and its update; leave out"
                " hooks.skip_spikes, and hooks with on_before_optimizer_step."
            )
        # The cache would keep the weights of before the first of several updates.
        return torch.autocast(
            self.device.type, self.precision.dtype, self.precision.is_mixed, cache_enabled=False
        )

    def backward(self, loss: torch.Tensor) -> None:
        if loss.requires_grad:
            raise ConfigError(
                f"model: {type(self.model).__name__} steps its own optimizers (owns_optimizers),"
                " and its loss still has a graph, which nothing uses; return loss.detach()."
            )

    def step(self) -> StepResult:
        return StepResult()
