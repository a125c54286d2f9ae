"""Modules whose first weights only their constructor knows, as users write them."""

import random

import torch
from torch import Tensor, nn


class Base(nn.Module):
    """64 pixels to 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x).tanh())


class Loaded(Base):
    """Weights from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        with torch.device("cpu"):
            stored = {
                name: torch.randn(p.shape, generator=generator)
                for name, p in self.named_parameters()
            }
        self.load_state_dict(stored)


class Scaled(Base):
    """A buffer, which `reset_parameters()` of a Linear does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled = Scale()

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(super().forward(x))


class Scale(nn.Linear):
    def __init__(self) -> None:
        super().__init__(10, 10)
        self.register_buffer("scale", torch.full((10,), 2.0))
        self.register_buffer("shift", torch.arange(10), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale + self.shift


class Tied(nn.Module):
    """One matrix in two places, by assignment."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.second(self.first(x).tanh()))


class Counting(Base):
    """A constructor that cannot run on the meta device, draws Python's numbers, and keeps a tensor
    unregistered."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0.5, 1, 2)]
        self.factor = torch.full((10,), random.random())

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.rates[0] * self.factor


class TiedLayers(Base):
    """Two layers with one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.second(self.first(self.hidden(x))).tanh())


class Points:
    """The samples (x, 2 x) of a line, x = 0, 1, ..."""

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tensor([index / self.size])
        return x, 2 * x


class TiedAndFrozen(Tied):
    """With dropout, and a layer that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.dropout = nn.Linear(64, 64).requires_grad_(False), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.dropout(self.frozen(x)))


class Pairs(nn.Module):
    """Two numbers to two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(2, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x / 40).tanh())
