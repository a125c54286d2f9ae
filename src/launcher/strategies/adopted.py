"""Parts that the user built and wrapped: `BaseTrainer`'s own strategy."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from launcher.optim.precision import Precision
from launcher.run.ranks import Ranks, rank, world_size
from launcher.strategies.base import NULL, BuildOptimizer
from launcher.strategies.native import NativeStrategy
from launcher.strategies.step import StepPlan


class AdoptedStrategy(NativeStrategy):
    """Process groups, devices and wrappers are the user's; the step is ours."""

    name = "adopted"

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        plan: StepPlan,
        precision: Precision,
        device: torch.device,
    ):
        self.ranks = Ranks(rank(), world_size(), 0)
        self.plan, self.precision, self.device = plan, precision, device
        self.attach(model, optimizer, scaler)
        self._no_sync = getattr(model, "no_sync", None) if plan.no_sync_accumulate else None
        self._set_sync = getattr(model, "set_requires_gradient_sync", None) if plan.no_sync_accumulate else None
        self._syncs = True

    def setup(self, plan: StepPlan, precision: Precision, device: str) -> torch.device:
        return self.device

    def prepare(
        self, build_model: Callable[[], nn.Module], build_optimizer: BuildOptimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        return self.model, self.optimizer

    def grad_sync(self, enabled: bool) -> AbstractContextManager[Any]:
        if self._set_sync is not None and enabled is not self._syncs:  # a model under fully_shard
            self._syncs = enabled
            self._set_sync(enabled)
        return NULL if enabled or self._no_sync is None else self._no_sync()
