"""trainloop's trainer with its checkpointing hook, which saves after each step, and at SIGTERM."""

import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from trainloop import BaseHook, BaseTrainer, CheckpointingHook

from benchmarks.foreign.toy import EPOCHS, PAUSE, loader, model


class Endless:
    def __init__(self, batches: Any):
        self.batches = batches

    def __iter__(self) -> Any:
        while True:
            yield from self.batches


class Trainer(BaseTrainer):
    def build_data_loader(self) -> Any:
        return Endless(loader())

    def build_model(self) -> nn.Module:
        return model()

    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def build_hooks(self) -> list[BaseHook]:
        return [CheckpointingHook(interval=1, exit_signals=signal.SIGTERM)]

    def forward(self, input: Any) -> tuple[Tensor, dict[str, Any]]:
        features, target = input
        loss = F.mse_loss(self.model(features), target)
        print(f"epoch {(self.step - 1) // 10} step {self.step} loss {loss.item()!r}", flush=True)
        time.sleep(PAUSE)
        return loss, {}


torch.manual_seed(0)
Trainer(max_steps=10 * EPOCHS, workspace=Path(sys.argv[1]), device="cpu").train()
