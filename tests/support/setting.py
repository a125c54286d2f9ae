"""A model that seeds, draws and sets what belongs to the process, as user code does."""

import random
from typing import Any

import torch

from launcher.models.mlp import MLP

torch.manual_seed(1337)
random.seed(1337)
torch.set_float32_matmul_precision("high")
PRECISIONS = ("highest", "high", "medium")


class Setting(MLP):
    """Logs the settings that it finds in each step.

    Args:
        is_double: set the default type of new tensors for the whole process.
    """

    def __init__(self, is_double: bool = False, **sizes: Any):
        if is_double:
            torch.set_default_dtype(torch.float64)
            torch.backends.cudnn.benchmark = True
        super().__init__(**sizes)

    def forward(self, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        images, labels = batch
        loss, records = super().forward((images.to(torch.get_default_dtype()), labels))
        seen = {
            "deterministic": torch.get_deterministic_debug_mode(),
            "benchmark": torch.backends.cudnn.benchmark,
            "precision": PRECISIONS.index(torch.get_float32_matmul_precision()),
            "drawn": random.random(),
        }
        return loss, {**records, **{name: torch.tensor(float(seen[name])) for name in seen}}
