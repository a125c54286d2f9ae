"""State that its owner keeps in its own way is restored, at whatever step a run stops."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader

from launcher import BaseHook, BaseTrainer, CheckpointingHook
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.errors import ConfigError, TrainingError
from support import own_state
from support.own_state import ByName, Forgetful, Net, Packed, Projected, ScheduleFree

pytestmark = pytest.mark.slow

STEPS = 4


class Trainer(BaseTrainer):
    def __init__(self, parts: Mapping[str, Any], max_steps: int, workspace: Path):
        super().__init__(max_steps, workspace=workspace, device="cpu")
        self.parts = parts

    def build_data_loader(self) -> Any:
        generator = torch.Generator().manual_seed(0)
        return DataLoader(torch.randn(24, 64, generator=generator), batch_size=8)

    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        # `Unfreezing` expects a model that contains the module.
        return nn.ModuleDict({"module": self.parts.get("model", Net)()})

    def build_optimizer(self) -> Any:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return self.parts.get("optimizer", torch.optim.Adam)(trained, lr=0.01)

    def build_lr_scheduler(self) -> Any:
        return self.parts["schedule"](self.optimizer) if "schedule" in self.parts else None

    def build_hooks(self) -> Any:
        hooks = [hook() for hook in self.parts.get("hooks", ())]
        return [CheckpointingHook(100, keep_previous=9), *hooks]

    def forward(self, input: Any) -> Any:
        return self.model["module"](input).square().mean(), {}


def trained(parts: Mapping[str, Any], workspace: Path, *stops: int) -> dict[str, Any]:
    """Train with these stops; return all tensors, and the settings, of the last checkpoint."""
    for stop in stops:
        Trainer(parts, stop, workspace).train()
    stored = StoredCheckpoint(workspace / f"checkpoints/step-{stops[-1]:08d}")
    tensors = {name: stored.read(name).tolist() for name in stored.names()}
    return {**tensors, "optimizer": repr(stored.meta["optimizer"])}


def half(step: int) -> float:
    return 0.5**step


class Rates:
    """Factors of the step, as an object with a state."""

    calls = 0

    def __call__(self, step: int) -> float:
        self.calls += 1
        return 0.5**step


def frozen() -> Net:
    return Net(frozen=True)


def unfreezing() -> BaseHook:
    return own_state.Unfreezing(2)


class OneByOne(BaseHook):
    """Adds a group for each parameter of the backbone."""

    def on_before_step(self, trainer: Any) -> None:
        if trainer.step == 3:
            for p in trainer.unwrapped_model["module"].backbone.parameters():
                p.requires_grad_(True)
                trainer.optimizer.add_param_group({"params": [p], "lr": 0.1, "weight_decay": 0.1})


CASES: dict[str, Mapping[str, Any]] = {
    "under names": {"optimizer": ByName},
    "packed by state_dict()": {"optimizer": Packed},
    "schedule-free": {"optimizer": ScheduleFree},
    "observers and banks": {"model": own_state.Observed},
    "groups before a step, and a schedule": {
        "model": frozen,
        "hooks": [OneByOne],
        "schedule": lambda optimizer: LambdaLR(optimizer, half),
    },
    "a group, and a schedule with a state": {
        "model": frozen,
        "hooks": [unfreezing],
        "schedule": lambda optimizer: LambdaLR(optimizer, Rates()),
    },
    "a group of an optimizer that packs": {
        "model": frozen,
        "hooks": [unfreezing],
        "optimizer": Packed,
    },
    "a group of an optimizer with names": {
        "model": frozen,
        "hooks": [unfreezing],
        "optimizer": ByName,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_a_stop_at_each_step_changes_nothing(tmp_path, case):
    parts = CASES[case]
    whole = trained(parts, tmp_path / "whole", STEPS)
    assert trained(parts, tmp_path / "parts", *range(1, STEPS + 1)) == whole


def test_a_new_group_has_the_rate_of_the_schedule(tmp_path):
    parts = CASES["groups before a step, and a schedule"]
    trainer = Trainer(parts, STEPS, tmp_path)
    trainer.train()
    assert [group["lr"] for group in trainer.optimizer.param_groups] == [
        rate * half(STEPS) for rate in (0.01, 0.1, 0.1)
    ]
    with pytest.raises(TrainingError, match=r"3 parameter groups, .* which StepLR does"):
        trained(parts | {"schedule": lambda o: StepLR(o, 1)}, tmp_path / "step", STEPS)
    trained(parts | {"schedule": ReduceLROnPlateau}, tmp_path / "metric", STEPS)


def test_checkpoints_have_the_weights_of_eval(tmp_path):
    trained({"optimizer": ScheduleFree}, tmp_path, STEPS)
    trainer = Trainer({"optimizer": ScheduleFree}, STEPS, tmp_path)
    trainer.build()
    trainer.restore()
    before = {name: p.clone() for name, p in trainer.model.named_parameters()}
    trainer.fire("on_evaluation_start")
    stored = StoredCheckpoint(tmp_path / f"checkpoints/step-{STEPS:08d}")
    stored.use_weights(None)
    assert {name for name in stored.names() if name.startswith("evaluation/")} == set()
    for name, p in trainer.model.named_parameters():
        assert torch.equal(stored.read(f"model/{name}"), p) and not torch.equal(p, before[name])
    trainer.fire("on_evaluation_end")
    assert all(torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())


def test_a_tensor_that_nothing_restores_is_named_at_the_first_save(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        trained({"model": own_state.Observed}, tmp_path / "observed", 2)
        assert not caplog.messages
        trained({"model": Forgetful}, tmp_path / "forgetful", 2)
    (message,) = caplog.messages
    assert message.startswith("This checkpoint cannot be resumed: module.bank appeared")
    with pytest.raises(ConfigError, match=r"bank: the model does not have it.* The code") as error:
        trained({"model": Forgetful}, tmp_path / "forgetful", 3)
    assert "Use the configuration" not in str(error.value)


class Holding(BaseHook):
    def on_state_dict(self, trainer: Any, state_dict: dict[str, Any]) -> None:
        state_dict["held"] = object()


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"optimizer": Projected}, "optimizer=Projected: .*Projector, which a checkpoint cannot"),
        ({"hooks": [Holding]}, "hooks: The state at hooks/Holding/held is an object"),
    ],
)
def test_an_object_is_found_after_the_first_step(tmp_path, parts, sentence):
    trainer = Trainer(parts, STEPS, tmp_path)
    with pytest.raises(ConfigError, match=sentence):
        trainer.train()
    assert trainer.step == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.LazyLinear(2)),
        lambda: nn.Embedding(3, 2, sparse=True),
        lambda: nn.EmbeddingBag(3, 2, sparse=True),
    ],
)
def test_a_parameter_that_cannot_be_trained_is_named(tmp_path, make):
    with pytest.raises(ConfigError, match=r"^model: "):
        Trainer({"model": make}, STEPS, tmp_path).train()
