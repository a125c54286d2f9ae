"""Checkpoints that an attempt rejects."""

import pytest
import torch
from torch import nn

from launcher import CheckpointingHook
from launcher.errors import ConfigError
from support.toy import Toy


class Sgd(Toy):
    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)


class Faster(Toy):
    def build_optimizer(self) -> torch.optim.Optimizer:
        optimizer = super().build_optimizer()
        for group in optimizer.param_groups:
            group["lr"] = 7.0
        return optimizer


def test_the_settings_of_the_checkpoints_optimizer_are_kept(tmp_path):
    first = Toy([CheckpointingHook(interval=1)], 1, tmp_path)
    first.train()
    other = Faster([CheckpointingHook(interval=1)], 2, tmp_path)
    other.train()
    for before, group in zip(
        first.optimizer.param_groups, other.optimizer.param_groups, strict=True
    ):
        assert group["initial_lr"] == before["initial_lr"] != 7.0


class Fewer(Toy):
    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters())


class Wider(Toy):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.Linear(3, 1))


class Deeper(Toy):
    def build_model(self) -> nn.Module:
        return nn.Sequential(*super().build_model(), nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (Sgd, "The optimizer is SGD, 1 group; .* written with AdamW, 4 groups"),
        (Fewer, "AdamW, 1 group; .* AdamW, 4 groups"),
        (Wider, r"shape \(2, 2\) in"),
        (Deeper, "3.weight: the checkpoint"),
    ],
)
def test_checkpoint_that_does_not_fit_is_rejected_before_the_attempt(tmp_path, other, why):
    Toy([CheckpointingHook(interval=1, keep_previous=9)], 3, tmp_path).train()
    before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    with pytest.raises(
        ConfigError, match=f"^load=latest: .*does not fit this configuration: .*{why}"
    ):
        other([CheckpointingHook(interval=1)], 5, tmp_path).train()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == before, (
        "nothing was abandoned"
    )
