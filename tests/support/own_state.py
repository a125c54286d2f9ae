"""Parts that keep and restore their state in their own way, as users write them."""

from typing import Any

import torch
from torch import Tensor, nn

from launcher import BaseHook


class Net(nn.Module):
    """64 pixels to 10 classes; the backbone is frozen at first if `frozen`."""

    def __init__(self, frozen: bool = False, norm: bool = False) -> None:
        super().__init__()
        self.backbone, self.head = nn.Linear(64, 16), nn.Linear(16, 10)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.backbone.requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.backbone(x)).relu())


class Ranges(nn.Module):
    """An observer: its buffer gets its shape in the first step, and the module restores it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.tensor([]))

    def forward(self, x: Tensor) -> Tensor:
        now = x.detach().abs().amax(0)
        if self.training:
            self.largest = torch.maximum(self.largest, now) if len(self.largest) else now
        return x / self.largest.clamp(min=1e-3) if len(self.largest) else x

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        self.largest = state[f"{prefix}largest"].clone()
        super()._load_from_state_dict(state, prefix, *rest)


class Bank(nn.Module):
    """A memory bank that is None at first, a flag beside it, and a count that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", None)
        self.is_filled, self.calls = False, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        if self.training:
            old = self.bank if self.is_filled else torch.zeros(x.shape[1])
            self.bank, self.is_filled = 0.9 * old + x.detach().mean(0), True
        return x + (self.bank / self.calls if self.is_filled else 0)

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        if (bank := state.get(f"{prefix}bank")) is not None:
            self.bank, self.is_filled = bank.clone(), True
        super()._load_from_state_dict(state, prefix, *rest)

    def get_extra_state(self) -> Any:
        return self.calls

    def set_extra_state(self, state: Any) -> None:
        self.calls = state


class Observed(Net):
    """All of them."""

    def __init__(self, frozen: bool = False) -> None:
        super().__init__(frozen)
        self.norm = nn.Sequential(Ranges(), Bank())


class Forgetful(Net):
    """A bank that nothing restores."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", None)

    def forward(self, x: Tensor) -> Tensor:
        self.bank = x.detach().mean(0)
        return super().forward(x)


class ByName(torch.optim.Optimizer):
    """Momentum under a name, a count under "global", and a tree under the parameter."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        shared = self.state["global"]
        shared["count"] = shared.get("count", 0) + 1
        shared["scales"] = [torch.tensor([1.0 / shared["count"]]), {"power": torch.tensor(0.5)}]
        for g, group in enumerate(self.param_groups):
            for i, p in enumerate(group["params"]):
                if p.grad is None:
                    continue
                state = self.state[f"p{g}.{i}"]
                momentum = state.setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(0.9).add_(p.grad, alpha=float(shared["scales"][0]))
                tree = self.state[p].setdefault("tree", {"sums": [torch.zeros(1), 0]})
                tree["sums"] = [tree["sums"][0] + momentum.abs().mean(), shared["count"]]
                p.sub_(momentum, alpha=group["lr"] / (1 + float(tree["sums"][0])))


class Projector:
    def __init__(self, factor: float) -> None:
        self.factor = factor


class Projected(torch.optim.SGD):
    """An object in the state."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for p in (p for group in self.param_groups for p in group["params"]):
            projector = self.state[p].setdefault("projector", Projector(1.0))
            projector.factor *= 0.9
            with torch.no_grad():
                p.mul_(1 - 0.1 * projector.factor)


class Packed(Projected):
    """It turns the object into a number, and back."""

    def state_dict(self) -> Any:
        packed = super().state_dict()
        for key, state in packed["state"].items():
            packed["state"][key] = {**state, "projector": state["projector"].factor}
        return packed

    def load_state_dict(self, packed: Any) -> None:
        super().load_state_dict(packed)
        for state in self.state.values():
            state["projector"] = Projector(float(state["projector"]))


class ScheduleFree(torch.optim.Optimizer):
    """Schedule-free SGD (arXiv:2405.15682): y are trained, x evaluated."""

    def __init__(self, params: Any, lr: float = 0.5, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0, "trains": False})

    def add_param_group(self, group: Any) -> None:
        """Let a later group be trained if the others are."""
        super().add_param_group({"trains": any(g["trains"] for g in self.param_groups)} | group)

    def _switch(self, trains: bool) -> None:
        for group in self.param_groups:
            if group["trains"] is not trains:
                group["trains"], beta = trains, group["beta"]
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.data.lerp_(self.state[p]["z"], 1 - beta if trains else 1 - 1 / beta)

    def train(self) -> None:
        self._switch(True)

    def eval(self) -> None:
        self._switch(False)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            assert group["trains"]
            group["k"] += 1
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                p.lerp_(z, 1 / group["k"])
                p.add_(p.grad, alpha=group["lr"] * (group["beta"] * (1 - 1 / group["k"]) - 1))
                z.sub_(p.grad, alpha=group["lr"])


class Unfreezing(BaseHook):
    """Trains the backbone from a step on, at a rate of its own."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_after_step(self, trainer: Any) -> None:
        if trainer.step == self.step:
            backbone = trainer.unwrapped_model.module.backbone
            backbone.requires_grad_(True)
            trainer.optimizer.add_param_group({"params": [*backbone.parameters()], "lr": 1e-2})
