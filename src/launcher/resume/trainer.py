"""The view of a trainer that resuming needs."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from launcher.strategies.base import Strategy, TensorReader

T = TypeVar("T")


class Progress(Protocol):
    """The counters of a run."""

    stop_reason: str | None
    epoch: int


class KeepsTensors(Protocol):
    """A hook, which may have tensors of its own in a checkpoint."""

    def load_tensors(self, trainer: Any, saved: TensorReader) -> None: ...


class Resumable(Protocol):
    """A trainer before its first step: built, and nothing is restored yet."""

    workspace: Path | None
    logger: logging.Logger
    model: nn.Module
    optimizer: torch.optim.Optimizer
    lr_scheduler: LRScheduler | None
    strategy: Strategy
    restored: dict[str, Any] | None
    resumed_from: Path | None
    pause_at: int | None
    is_fork: bool
    data_loader: Any

    @property
    def context(self) -> Any: ...
    @property
    def hooks(self) -> Sequence[KeepsTensors]: ...
    @property
    def state(self) -> Progress: ...
    @property
    def source(self) -> Any: ...
    @property
    def step(self) -> int: ...
    def load_training_state(self, saved: dict[str, Any]) -> None: ...
    def restore_schedule(self, saved: dict[str, Any], takes_rates: bool = False) -> None: ...
    def own_attributes(self) -> dict[str, Any]: ...


def name_by_class(parts: Sequence[T]) -> Iterator[tuple[str, T]]:
    """Yield parts with their names. The second one of a class is `LoggingHook#2`."""
    counts: dict[str, int] = {}
    for part in parts:
        name = type(part).__name__
        counts[name] = counts.get(name, 0) + 1
        yield (name if counts[name] == 1 else f"{name}#{counts[name]}"), part
