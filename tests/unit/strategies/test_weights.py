"""A checkpoint has a model's whole state, and a resume restores it, whatever its `state_dict()`
does."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from launcher import CheckpointingHook
from launcher.errors import ConfigError, TrainingError
from launcher.strategies.weights import extra_misfits
from support.toy import GOOD, Toy


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Cloning(Net):
    """A module like FSDP1's, whose `state_dict()` gives copies."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return copy.deepcopy(super().state_dict(*args, **kwargs))


class Deaf(Cloning):
    """Its `load_state_dict()` forgets the bias."""

    def load_state_dict(self, state: Any, *args: Any, **kwargs: Any) -> Any:
        heard = {key: value for key, value in state.items() if "bias" not in key}
        return super().load_state_dict(heard, *args, **kwargs)


class Counting(Net):
    """State that is no tensor."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) / self.calls

    def get_extra_state(self) -> Any:
        return {"calls": self.calls}

    def set_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]


class Complex(Net):
    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.ones(1, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (super().forward(x) * self.phase).abs()


class Hiding(Net):
    """A parameter that `state_dict()` does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.hidden

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = super().state_dict(*args, **kwargs)
        state.pop("hidden", None)
        return state


class Expanded(Net):
    """Its mask has one place in memory for two elements."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(1).expand(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * self.mask)


class LookAlike(Net):
    """Attributes with the names of torch's wrappers."""

    no_sync = False
    reshard = "no method"

    def set_requires_gradient_sync(self, first: int, second: int) -> None:
        raise AssertionError("it is not for Launcher")


class Quantized(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))


class Unstorable(Net):
    def get_extra_state(self) -> Any:
        return object()


class Trainer(Toy):
    def __init__(self, model: type[nn.Module], max_steps: int, workspace: Path):
        settings = {"batches": [GOOD], "gradient_accumulation_steps": 2}
        super().__init__([CheckpointingHook(100)], max_steps, workspace, **settings)
        self.model_class = model

    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.model_class()

    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=0.1)


def trained(model: type[nn.Module], workspace: Path, *stops: int) -> dict[str, Any]:
    for stop in stops:
        trainer = Trainer(model, stop, workspace)
        trainer.train()
    values = {name: p.tolist() for name, p in trainer.model.named_parameters()}
    return values | {"calls": getattr(trainer.model, "calls", None)}


@pytest.mark.parametrize("model", [Net, Cloning, Counting, Complex, Hiding, Expanded, LookAlike])
def test_a_resumed_run_has_every_value(model, tmp_path):
    assert trained(model, tmp_path / "parts", 2, 4) == trained(model, tmp_path / "whole", 4)


def test_a_model_that_does_not_take_its_weights_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"layer\.bias: .*cannot be resumed"):
        trained(Deaf, tmp_path, 2, 4)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    ("model", "sentence"),
    [(Quantized, "table has dtype qint8"), (Unstorable, "_extra_state/_extra_state is an object")],
)
def test_tensor_that_cannot_be_stored_is_rejected_before_training(model, sentence, tmp_path):
    with pytest.raises(ConfigError, match=f"model: .*{sentence}"):
        trained(model, tmp_path, 2)


def test_extra_state_that_does_not_fit_is_an_error():
    for model, stored in ((Counting(), {}), (Net(), {"_extra_state": {"calls": 3}})):
        with pytest.raises(TrainingError, match=r"_extra_state: the .* does not have it"):
            extra_misfits(model, stored)
