"""The trainer that `build.py` makes of a configuration."""

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from launcher.config.settings import TrainerSettings
from launcher.config.tree import Node
from launcher.hooks.base import BaseHook
from launcher.hooks.records import map_nested_tensor
from launcher.hooks.view import LossAndRecords, RunContext
from launcher.models.declared import declared_method
from launcher.optim.precision import Precision
from launcher.strategies.base import BuildModel, BuildOptimizer, Strategy
from launcher.train.trainer import BaseTrainer

CAPTURING_MODES = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that record CUDA graphs, as its documentation says."""


def captures_graphs(options: Node, device: torch.device) -> bool:
    """Return whether a compiled model runs CUDA graphs, whose outputs the next call overwrites."""
    captures = options.get("mode") in CAPTURING_MODES or options.get("backend") == "cudagraphs"
    return device.type == "cuda" and captures


class Trainer(BaseTrainer):
    """The training loop over composed parts, for instance of a configuration.

    Args:
        strategy: strategy whose `setup` has been called. Its plan has accumulation and clipping.
        build_scheduler: makes the schedule of an optimizer. With None, the rates are constant.
        data_loader: the loader of this rank.
        settings: `trainer` of the configuration.

    Examples:
        >>> from launcher.config.compose.composer import command
        >>> from launcher.train.build import build_trainer
        >>> with command(["model=mlp", "data=digits", "device=cpu"]) as words:
        ...     run = words.run()
        >>> build_trainer(run, run.folder).max_steps
        500
    """

    def __init__(
        self,
        *,
        strategy: Strategy,
        build_model: BuildModel,
        build_optimizer: BuildOptimizer,
        build_scheduler: Callable[[torch.optim.Optimizer], LRScheduler] | None,
        data_loader: Iterable[Any],
        hooks: Sequence[BaseHook],
        context: RunContext,
        precision: Precision,
        settings: TrainerSettings,
        workspace: Path,
        logger: logging.Logger,
    ):
        assert settings.max_steps is not None, (
            "the steps of max_epochs are computed before the trainer is made"
        )
        super().__init__(
            max_steps=settings.max_steps,
            grad_clip=strategy.plan.max_grad_norm,
            max_non_finite_grad_retries=settings.max_non_finite_grad_retries,
            gradient_accumulation_steps=strategy.plan.grad_accum_steps,
            workspace=workspace,
            device=strategy.device,
            no_sync_accumulate=not settings.sync_every_micro_batch,
            logger=logger,
            max_consecutive_skipped_steps=settings.max_consecutive_skipped_steps,
            max_consecutive_none_losses=settings.max_consecutive_none_losses,
            pause_at=settings.pause_at,
        )
        self.precision = precision
        self.context = context
        self._strategy = strategy
        self._loader = data_loader
        self._hooks = hooks
        self._build_model, self._build_optimizer = build_model, build_optimizer
        self._build_scheduler = build_scheduler
        self._reuses_outputs = False
        self._count_targets: Callable[[Any], torch.Tensor | int | None] | None = None

    def build_data_loader(self) -> Iterable[Any]:
        return self._loader

    def build_model_and_optimizer(self) -> None:
        """Let the strategy build both, since each strategy has its own order."""
        self.model, self.optimizer = self._strategy.prepare(
            self._build_model, self._build_optimizer
        )
        self._count_targets = declared_method(self.unwrapped_model, "num_targets")

    def build_lr_scheduler(self) -> Any:
        if self._build_scheduler is not None:
            return self._build_scheduler(self.optimizer)
        return None

    def build_grad_scaler(self) -> torch.amp.GradScaler:
        return self._strategy.scaler

    def build_hooks(self) -> Sequence[BaseHook]:
        return self._hooks

    def build_strategy(self) -> Strategy:
        return self._strategy

    def compile(self, options: Node) -> None:
        """Compile the model in place, so that the names of its tensors stay unchanged."""
        self._is_compiled = True
        self._reuses_outputs = captures_graphs(options, self.device)
        self.model.compile(**options)

    def forward(self, input: Any) -> LossAndRecords:
        outputs: LossAndRecords = self.model(input)
        if self._reuses_outputs:
            # The next call overwrites them, and they are logged some steps later.
            outputs = map_nested_tensor(torch.clone, outputs)
        return outputs

    def _forward_name(self) -> str:
        return f"{type(self.unwrapped_model).__name__}.forward"

    def _counts_targets(self) -> bool:
        return self._count_targets is not None

    def num_targets(self, input: Any) -> torch.Tensor | int | None:
        if self._count_targets is None:
            return None
        return self._count_targets(input)
