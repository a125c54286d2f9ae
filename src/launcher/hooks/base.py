"""What a hook is told, and the little of a trainer that it may see."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from launcher.strategies.base import Strategy

Records = dict[str, Any]
"""Nested dicts of numbers or 0-d tensors."""


@dataclass
class TrainState:
    """Where a run stands at a step boundary. Every counter counts optimizer steps."""

    step: int = 0
    """The last begun step; incremented before a step, so hooks see 1 in the first."""
    skipped_steps: int = 0
    """Steps whose update was left out for a non-finite gradient, over the whole run."""
    skipped_in_row: int = 0
    epoch: int = 0
    """Passes over a finite user loader; our own loader counts samples instead."""
    stop_reason: str | None = None
    """Set by a hook (early stopping) to end training after the present step as if it were the last."""

    def stop(self, reason: str) -> None:
        self.stop_reason = reason


class TrainerView(Protocol):
    """The trainer as hooks see it."""

    state: TrainState
    max_steps: int
    grad_clip: float | None
    gradient_accumulation_steps: int
    workspace: Path | None
    device: torch.device
    logger: logging.Logger
    model: nn.Module
    optimizer: torch.optim.Optimizer
    lr_scheduler: torch.optim.lr_scheduler.LRScheduler | None
    strategy: Strategy
    data_loader: Iterable[Any]
    hooks: list["BaseHook"]
    step_info: dict[str, Any]
    resumed_rng: dict[str, Any] | None

    @property
    def step(self) -> int: ...
    @property
    def samples(self) -> int | None: ...
    @property
    def stop_signal(self) -> int: ...
    @property
    def is_last_step(self) -> bool: ...
    def forward(self, input: Any) -> tuple[torch.Tensor | None, Records]: ...
    def settle(self) -> None: ...
    def update_was_skipped(self) -> bool: ...
    def training_state(self) -> dict[str, Any]: ...
    def load_training_state(self, saved: dict[str, Any]) -> None: ...
    def log(self, records: Records, dry_run: bool = False) -> None: ...


class BaseHook:
    """Override what is needed: an event that no hook overrides costs the loop nothing. Hooks run in list order."""

    def on_start(self, trainer: Any) -> None:
        """All is built, nothing has begun: the place to put back a saved state."""

    def on_before_train(self, trainer: Any) -> None:
        """Once, with the state as training will begin with."""

    def on_before_step(self, trainer: Any) -> None:
        """`trainer.step` is the step about to be made."""

    def on_before_optimizer_step(self, trainer: Any) -> None:
        """Gradients are whole and unscaled, and not clipped yet."""

    def on_after_step(self, trainer: Any) -> None:
        """`trainer.step_info` is that of the step."""

    def on_step_boundary(self, trainer: Any) -> None:
        """After every hook's `on_after_step`: the state of a completed step, which nothing else will change."""

    def on_after_train(self, trainer: Any) -> None:
        """Training reached its end; not called when it was stopped or failed."""

    def on_close(self, trainer: Any) -> None:
        """However training ended: let go of files and threads."""

    def on_log(self, trainer: Any, records: Records, dry_run: bool = False) -> None:
        """Nested records of numbers at `trainer.step`."""

    def on_log_images(self, trainer: Any, records: Records, dry_run: bool = False) -> None:
        """Nested records of PIL images."""

    def on_state_dict(self, trainer: Any, state_dict: dict[str, Any]) -> None:
        """Add what must survive, under a key of the hook's own: numbers, strings, tensors, and containers of them."""

    def on_load_state_dict(self, trainer: Any, state_dict: dict[str, Any]) -> None:
        """Take it back. The key is absent if the checkpoint was written without this hook."""
