"""ReplayStepHook in one process; tests/end_to_end/strategies/test_hooks.py has it on two ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from launcher import BaseTrainer
from launcher.errors import TrainingError
from launcher.hooks.replay_step import LOSS, ReplayStepHook, faulty_nodes


class Unsteady(nn.Module):
    """Multiplies by another number in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return input * (1 + 1e-6 * self.calls)


class Toy(BaseTrainer):
    def __init__(
        self, hooks: list[Any], part: nn.Module, optimizer: Any = torch.optim.SGD, **options: Any
    ):
        super().__init__(
            max_steps=5, device="cpu", gradient_accumulation_steps=2, grad_clip=1.0, **options
        )
        self.own, self.part, self.kind = hooks, part, optimizer

    def build_data_loader(self) -> Any:
        return [
            torch.randn(4, 3, generator=torch.Generator().manual_seed(index)) for index in range(10)
        ]

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), self.part, nn.Linear(8, 1)
        )

    def build_optimizer(self) -> Any:
        return self.kind(self.model.parameters(), lr=0.1)

    def build_hooks(self) -> Any:
        return self.own

    def forward(self, input: Any) -> Any:
        return self.model(input).square().mean(), {}


def final(hooks: list[Any], **options: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    trainer = Toy(hooks, nn.Identity(), **options)
    trainer.train()
    return [*trainer.model.state_dict().values(), torch.get_rng_state()]


@pytest.mark.parametrize("precision", [None, "bf16"])
def test_a_training_that_repeats_is_not_changed(precision: str | None) -> None:
    plain = final([], mixed_precision=precision)
    checked = final([ReplayStepHook(interval=1)], mixed_precision=precision)
    assert all(torch.equal(*pair) for pair in zip(plain, checked, strict=True))


def test_an_operation_that_does_not_repeat_stops_before_the_update() -> None:
    trainer = Toy([ReplayStepHook(interval=3)], Unsteady())
    with pytest.raises(
        TrainingError,
        match=r"^Step 3: two passes .* differ on rank 0 \(.*, cpu\): the loss and the gra",
    ):
        trainer.train()
    assert trainer.step == 3


def test_a_warning_lets_training_continue(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    trainer = Toy([ReplayStepHook(interval=2, on_difference="warn")], Unsteady())
    trainer.train()
    lines = [line for line in caplog.messages if "differ on rank 0" in line]
    assert [line[:6] for line in lines] == ["Step 2", "Step 4"] and trainer.step == 5
    assert "Nothing of this step" not in lines[0]


@pytest.mark.parametrize(
    ("found", "nodes"),
    [
        ([("a", LOSS)], ["a"]),
        ([("a", None), ("b", LOSS)], ["b"]),
        ([("a", "the gradients of w"), ("b", f"{LOSS} and the gradients of w")], ["b"]),
        ([("a", "the gradients of w"), ("a", None), ("b", None)], ["a"]),
        ([("a", LOSS), ("b", LOSS)], []),
        ([("a", "the gradients of w"), ("b", "the gradients of w")], []),
        ([("a", LOSS), ("b", LOSS), ("c", None)], ["a", "b"]),
    ],
)
def test_all_of_several_nodes_are_no_faulty_nodes(found: Any, nodes: list[str]) -> None:
    assert faulty_nodes(found) == nodes
