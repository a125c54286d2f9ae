"""Models that know nothing of Launcher, as their authors wrote them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Foreign(nn.Module):
    """64 pixels to 10 classes, and no method of its own but `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 16)
        self.out = nn.Linear(16, 10)

    def scores(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x).tanh())

    def forward(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Any]]:
        input, target = batch
        return F.cross_entropy(self.scores(input), target), {}


class Counted(Foreign):
    """Counts its targets by a method that it declares."""

    launcher_methods = ("num_targets",)

    def num_targets(self, batch: Any) -> int:
        return len(batch[0])


class Numbered(Foreign):
    """Has a number of the same name."""

    def __init__(self) -> None:
        super().__init__()
        self.num_targets = 1


class Normed(Foreign):
    """With statistics of the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def scores(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.hidden(x)).tanh())


class Renormed(Foreign):
    """Its forward pass changes a weight, as `nn.Embedding(max_norm=...)` does."""

    def __init__(self, is_frozen: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 10, max_norm=0.1)
        self.table.requires_grad_(not is_frozen)

    def scores(self, x: Tensor) -> Tensor:
        return super().scores(x) + self.table(x[:, :4].long().clamp(0, 9)).mean(1)


class FrozenRenormed(Renormed):
    def __init__(self) -> None:
        super().__init__(is_frozen=True)


class RenormedByHand(Foreign):
    """The same, of a parameter that no module of its own has."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(10, 10))

    def scores(self, x: Tensor) -> Tensor:
        rows = F.embedding(x[:, :4].long().clamp(0, 9), self.table, max_norm=0.1)
        return super().scores(x) + rows.mean(1)


class Momentum(Foreign):
    """A frozen copy of a layer follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Linear(16, 10).requires_grad_(False)

    def scores(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.slow.weight.mul_(0.9).add_(self.out.weight, alpha=0.1)
        return super().scores(x) + self.slow(self.hidden(x).tanh())


class Spectral(Foreign):
    """Complex weights, of which one has no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(33, 16, dtype=torch.cfloat) / 8)
        self.phase = nn.Parameter(torch.tensor(1 + 1j))

    def scores(self, x: Tensor) -> Tensor:
        spectrum = (torch.fft.rfft(x) @ self.filter) * self.phase
        return super().scores(x) + self.out(spectrum.abs())
