"""BatchDataset, a map-style dataset that reads its samples a batch at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np


class BatchDataset(ABC):
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        from launcher.data.transfer import map_tensors  # imports torch

        if not 0 <= index < self.size:
            raise IndexError(f"sample {index} of {self.size}")
        return map_tensors(self.get_batch(np.array([index])), lambda tensor: tensor[0])

    @abstractmethod
    def get_batch(self, indices: np.ndarray) -> Any:
        """Read the samples of `indices`, int64 [B], as tensors whose first axis is the batch."""
