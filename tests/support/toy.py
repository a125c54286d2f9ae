"""A tiny trainer for tests of hooks, and a hook that keeps what is logged."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from launcher import BaseHook, BaseTrainer

GOOD = torch.arange(8.0).reshape(4, 2) / 8
BAD = torch.full((4, 2), float("nan"))


class Toy(BaseTrainer):
    """A small model with dropout on batches [B, 2], under a learning rate that halves each step."""

    def __init__(
        self,
        hooks: Sequence[BaseHook],
        max_steps: int,
        workspace: Path,
        batches: Any = None,
        **settings: Any,
    ):
        super().__init__(max_steps, 1.0, workspace=workspace, device="cpu", **settings)
        self.given, self.batches = hooks, batches

    def build_data_loader(self) -> Iterable[Any]:
        if self.batches is not None:
            return self.batches
        return torch.utils.data.DataLoader(torch.arange(24.0).reshape(12, 2) / 24, batch_size=4)

    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.Linear(2, 1))

    def build_optimizer(self) -> torch.optim.Optimizer:
        groups = [{"params": [p], "name": name} for name, p in self.model.named_parameters()]
        return torch.optim.AdamW(groups, lr=0.1)

    def build_lr_scheduler(self) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.5**step)

    def build_hooks(self) -> Sequence[BaseHook]:
        return self.given

    def forward(self, input: torch.Tensor) -> Any:
        loss = self.model(input).pow(2).mean()
        return loss, {"size": float(len(input)), "aux": {"l": loss.detach()}}


class Recorder(BaseHook):
    """Keeps what is logged, with its step."""

    def __init__(self) -> None:
        self.records: list[tuple[int, dict[str, Any]]] = []

    def of(self, group: str) -> list[tuple[int, Any]]:
        """Return the steps and records of a group."""
        return [(step, records[group]) for step, records in self.records if group in records]

    def on_log(self, trainer: Any, records: dict[str, Any], dry_run: bool = False) -> None:
        self.records.append((trainer.step, records))


class Values(BaseHook):
    """Logs `{"val": ...}` after those steps that it has values for."""

    def __init__(self, values: dict[int, dict[str, Any]], group: str = "val"):
        self.values, self.group = values, group

    def on_after_step(self, trainer: Any) -> None:
        if trainer.step in self.values:
            trainer.log({self.group: self.values[trainer.step]})
