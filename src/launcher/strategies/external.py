"""The strategy of `BaseTrainer`: the user builds and wraps the parts."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from launcher.optim.precision import Precision
from launcher.process.ranks import Ranks, rank, world_size
from launcher.strategies.base import (
    NULL,
    BuildModel,
    BuildOptimizer,
    ModelAndOptimizer,
    Snapshot,
    TensorReader,
)
from launcher.strategies.native import NativeStrategy
from launcher.strategies.step import StepPlan
from launcher.strategies.weights import (
    MODEL,
    exchanges_gradients,
    is_fully_sharded,
    layers,
    load_model_tensors,
    reject_misfits,
    unwrap,
)


class ExternalStrategy(NativeStrategy):
    """Process groups, devices and wrappers are the user's; the step is Launcher's."""

    name = "adopted"

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        plan: StepPlan,
        precision: Precision,
        device: torch.device,
        state_dict_options: object,
    ):
        self.ranks = Ranks(rank(), world_size(), 0)
        self.plan = plan
        self.precision = precision
        self.device = device
        self.attach(model, optimizer, scaler)
        # A compiled model wraps the module that exchanges gradients.
        wrappers: list[Any] = [] if plan.sync_every_micro_batch else list(layers(model))
        self._no_sync = next((m.no_sync for m in wrappers if exchanges_gradients(m)), None)
        self._set_sync = next(
            (m.set_requires_gradient_sync for m in wrappers if is_fully_sharded(m)), None
        )
        self._syncs = True
        self._strict = getattr(state_dict_options, "strict", True)
        self._ignores_frozen = getattr(state_dict_options, "ignore_frozen_params", False)

    def setup(self, plan: StepPlan, precision: Precision, device: str) -> torch.device:
        return self.device

    def prepare(
        self, build_model: BuildModel, build_optimizer: BuildOptimizer
    ) -> ModelAndOptimizer:
        return self.model, self.optimizer

    # The other `StateDictOptions` do not concern a checkpoint, which is sharded and written from
    # host memory.
    def _frozen(self) -> set[str]:
        return {name for name, p in unwrap(self.model).named_parameters() if not p.requires_grad}

    def snapshot(self) -> Snapshot:
        snapshot = super().snapshot()
        if self._ignores_frozen:
            for name in self._frozen():
                snapshot.tensors.pop(MODEL + name, None)
                snapshot.parts.pop(MODEL + name, None)
        return snapshot

    def load_model(self, saved: TensorReader) -> None:
        problems = load_model_tensors(self.model, saved, MODEL, strict=False)
        optional = self._frozen() if self._ignores_frozen else set()
        problems = [problem for problem in problems if problem.split(":", 1)[0] not in optional]
        if self._strict:
            reject_misfits(problems)

    def grad_sync(self, enabled: bool) -> AbstractContextManager[object]:
        # A model under fully_shard has a switch, which is set when it changes.
        if self._set_sync is not None and enabled is not self._syncs:
            self._syncs = enabled
            self._set_sync(enabled)
        return NULL if enabled or self._no_sync is None else self._no_sync()
