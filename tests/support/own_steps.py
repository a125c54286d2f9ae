"""Models that step their own optimizers."""

import torch
from torch import Tensor, nn


class Pair(nn.Module):
    """Two layers, each with an optimizer, and a schedule of the second.

    Args:
        fault: what is wrong with it.
        missing: its loss is None in this call.
    """

    owns_optimizers = ("first_optimizer", "second_optimizer", "schedule")

    def __init__(self, fault: str = "", missing: int = -1):
        super().__init__()
        self.fault, self.missing, self.calls = fault, missing, 0
        self.first, self.second = nn.Linear(64, 8), nn.Linear(8, 10)
        self.first_optimizer = torch.optim.Adam(self.first.parameters(), 0.01)
        self.second_optimizer = torch.optim.SGD(self.second.parameters(), 0.1, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.second_optimizer, 2, 0.5)
        if fault == "replaced":
            self.second = nn.Linear(8, 10)
        if fault == "absent":
            del self.schedule

    def losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        input, target = batch
        return nn.functional.cross_entropy(self.second(self.first(input)), target)

    def forward(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor | None, dict[str, Tensor]]:
        self.calls += self.training
        if self.training and self.calls == self.missing:
            return None, {}
        for optimizer in (self.second_optimizer, self.first_optimizer):
            loss = self.losses(batch)
            if self.training:
                self.zero_grad()
                loss.backward()
                optimizer.step()
        if self.training:
            self.schedule.step()
        return loss if self.fault == "graph" else loss.detach(), {}


class Scheduled(Pair):
    """Declares no optimizer."""

    owns_optimizers = ("schedule",)


class Summing(Pair):
    """Makes an update from the gradients of every third step and of the two before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.losses(batch)
        if self.training:
            loss.backward()
            self.count += 1
            if self.count % 3 == 0:
                self.first_optimizer.step()
                self.second_optimizer.step()
                self.zero_grad()
        return loss.detach(), {}
