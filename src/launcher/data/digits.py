"""Digits: 1797 handwritten digits of 8x8 pixels, from scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from launcher.data.base import DataSource
from launcher.data.batched import BatchDataset
from launcher.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(kw_only=True, eq=False)
class DigitsData(DataSource):
    """Images and their digits: input [B, 64] float32 in 0..1, target [B] int64 in 0..9.

    Every fifth is held out. `num_features` and `num_classes` are always 64 and 10.
    """

    num_features: Literal[64] = 64
    num_classes: Literal[10] = 10

    def train_dataset(self) -> Labelled:
        return self._part(held_out=False)

    def val_dataset(self) -> Labelled:
        return self._part(held_out=True)

    def _part(self, held_out: bool) -> Labelled:
        inputs, targets = load_digits()
        chosen = (np.arange(len(inputs)) % 5 == 4) == held_out
        return Labelled(inputs[chosen], targets[chosen])


class Labelled(BatchDataset):
    """Samples in memory: inputs float32 [N, ...] and their targets int64 [N]."""

    def __init__(self, inputs: np.ndarray, targets: np.ndarray):
        self.inputs = inputs
        self.targets = targets
        self.size = len(inputs)

    def get_batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        import torch

        return torch.from_numpy(self.inputs[indices]), torch.from_numpy(self.targets[indices])


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Pixels float32 [1797, 64] in 0..1, and digits int64 [1797]."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ConfigError(
            "data=digits: needs scikit-learn, which is not installed; pip install"
            " 'torch-launcher[digits]'."
        )
    # Importing scikit-learn would take a second.
    table = np.loadtxt(
        Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=","
    )
    return (table[:, :-1] / 16).astype(np.float32), table[:, -1].astype(np.int64)
