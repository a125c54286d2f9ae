"""An optimizer's state by name: what goes out comes back in, over whatever was there."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from launcher.checkpoint.shards import ShardReader, write_tensors
from launcher.errors import TrainingError
from launcher.strategies.optimizer_state import load_optimizer, optimizer_snapshot


class Halves(nn.Module):
    """`rare` is used where it is asked for alone, so it may have no state."""

    def __init__(self) -> None:
        super().__init__()
        self.often, self.rare = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, with_rare: bool) -> torch.Tensor:
        x = torch.ones(2, 3)
        return (self.often(x) + (self.rare(x) if with_rare else 0)).square().sum()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, with_rare: bool) -> None:
    optimizer.zero_grad()
    model(with_rare).backward()
    optimizer.step()


def write(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[ShardReader, list]:
    tensors, groups = optimizer_snapshot(model, optimizer)
    write_tensors(path, {f"optimizer/{name}": tensor.clone() for name, tensor in tensors.items()})
    return ShardReader([path]), groups


KINDS = {
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "amsgrad": {"amsgrad": True},
    "tensor lr": {"lr": torch.tensor(0.01), "foreach": False},
}


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_read_over_what_there_is(tmp_path, kind):
    torch.manual_seed(0)
    model = Halves()
    optimizer = torch.optim.AdamW(model.parameters(), **{"lr": 0.01, **KINDS[kind]})
    step(model, optimizer, with_rare=False)
    old, groups = write(tmp_path / "old", model, optimizer)
    expected = copy.deepcopy(optimizer_snapshot(model, optimizer)[0])
    assert not any(name.startswith("rare") for name in expected)
    step(model, optimizer, with_rare=True)
    load_optimizer(model, optimizer, old, "optimizer/", groups)
    found = optimizer_snapshot(model, optimizer)[0]
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    step(model, optimizer, with_rare=True)  # and training continues
    assert len(optimizer_snapshot(model, optimizer)[0]) == 2 * len(expected)


def test_state_goes_into_a_new_optimizer_of_another_kind(tmp_path):
    torch.manual_seed(0)
    model = Halves()
    ends = []
    step(model, optimizer := torch.optim.AdamW(model.parameters(), foreach=True), with_rare=True)
    saved, groups = write(tmp_path / "saved", model, optimizer)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for settings in ({"foreach": True}, {"foreach": False}):
        model.load_state_dict(weights)
        other = torch.optim.AdamW(model.parameters(), lr=1.0, **settings)
        load_optimizer(model, other, saved, "optimizer/", groups)
        group = other.param_groups[0]
        assert group["foreach"] is settings["foreach"], "how it computes is not the checkpoint's"
        assert group["lr"] == optimizer.param_groups[0]["lr"]
        step(model, other, with_rare=True)
        ends.append(model.often.weight.clone())
    assert torch.equal(*ends)


def test_another_optimizer_s_state_is_rejected(tmp_path):
    model = Halves()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step(model, optimizer, with_rare=True)
    saved, groups = write(tmp_path / "saved", model, optimizer)
    more = groups | {"groups": groups["groups"] * 2}
    message = r"SGD, 1 group; the checkpoint was written with SGD, 2 groups\."
    with pytest.raises(TrainingError, match=message):
        load_optimizer(model, optimizer, saved, "optimizer/", more)
    with pytest.raises(TrainingError, match="no state for the parameter"):
        load_optimizer(nn.Sequential(model), optimizer, saved, "optimizer/", groups)
