"""The data and the model of the foreign trainings."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 3
BATCH = 8
SAMPLES = 80
PAUSE = 0.05
"""Ten steps an epoch; each waits this many seconds, so that a signal meets it."""


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    input = torch.randn(SAMPLES, 4, generator=generator)
    return TensorDataset(input, input.sum(1, keepdim=True))


def loader() -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(dataset(), BATCH, shuffle=True)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1))
