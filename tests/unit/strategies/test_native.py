"""The step on plain torch: which parameters are clipped and guarded."""

from typing import Any

import pytest
import torch
from torch import nn

from launcher import BaseHook, LoggingHook
from launcher.errors import TrainingError
from launcher.hooks.view import TrainerView
from support.toy import GOOD, Toy


class Unfreezing(BaseHook):
    """Gives the last layer to the optimizer before step 2."""

    def on_before_step(self, trainer: TrainerView) -> None:
        if trainer.step == 2:
            trainer.optimizer.add_param_group(
                {"params": list(trainer.model[2].parameters()), "name": "late"}
            )


class LateGroup(Toy):
    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))

    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            [{"params": list(self.model[0].parameters()), "name": "early"}], lr=1.0
        )

    def build_lr_scheduler(self) -> Any:
        return None

    def forward(self, input: torch.Tensor) -> Any:
        scale = float("inf") if self.step == 4 else 1e6
        return self.model(input).pow(2).mean() * scale, {}


@pytest.mark.parametrize("logging_first", [True, False])
def test_parameters_added_later_are_clipped_and_guarded(tmp_path, logging_first):
    hooks = [LoggingHook(1), Unfreezing()] if logging_first else [Unfreezing(), LoggingHook(1)]
    trainer = LateGroup(hooks, 3, tmp_path, batches=[GOOD])
    trainer.train()
    assert float(trainer.step_info["grad_norm"]) > 1000
    weights = trainer.model[2].weight.detach().clone()
    assert weights.abs().max() < 3, "each step moves the weights by at most 1"
    trainer.max_steps = 4
    with pytest.raises(TrainingError, match="not finite"):
        trainer.train()
    assert trainer.state.skipped_steps == 1 and torch.equal(trainer.model[2].weight, weights)
