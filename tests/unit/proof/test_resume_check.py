"""job=resume_check names each planted fault; tests/end_to_end/test_resume_check.py starts the
job."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from launcher import BaseHook, BaseTrainer
from launcher.hooks.checkpointing import CheckpointingHook
from launcher.proof.diff import TraceComparison
from launcher.proof.scratch_run import Traced
from launcher.proof.trace import TraceHook
from launcher.rundir.folder import RunFolder
from support.forgetful import Warmup

pytestmark = pytest.mark.slow


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index / 8, 1.0])


class ByTheClock(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + time.perf_counter_ns() % 1009


class Counted(Numbers):
    def __init__(self) -> None:
        self.reads = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.reads += 1
        return super().__getitem__(index) * self.reads


class OwnOrder(Sampler[int]):
    """Draws from a generator that no attribute of the sampler has directly."""

    def __init__(self) -> None:
        self.own = {"generator": torch.Generator().manual_seed(7)}

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Any:
        yield from (int(torch.randint(8, (), generator=self.own["generator"])) for _ in range(8))


class Unsaved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(2, 1), 0
        self.register_buffer("mean", torch.zeros(()), persistent=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean = 0.9 * self.mean + input.mean()
        return self.layer(input) * self.calls - self.mean


class Saved(Warmup):
    def on_state_dict(self, trainer: Any, state_dict: dict[str, Any]) -> None:
        state_dict["warmup"] = self.count

    def on_load_state_dict(self, trainer: Any, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["warmup"]


class Drawing(BaseHook):
    """Draws from the training's generator when a process begins its first step."""

    def __init__(self) -> None:
        self.is_first = True

    def on_before_step(self, trainer: Any) -> None:
        if self.is_first:
            torch.rand(1)
        self.is_first = False


class Toy(BaseTrainer):
    def __init__(self, folder: Path, trace: Path, fault: Any, pause_at: int | None):
        super().__init__(max_steps=6, workspace=folder, device="cpu", pause_at=pause_at)
        self.trace, self.fault = trace, fault

    def part(self, kind: type) -> Any:
        return (
            self.fault() if isinstance(self.fault, type) and issubclass(self.fault, kind) else None
        )

    def build_data_loader(self) -> Any:
        sampler = self.part(Sampler)
        order = {"shuffle": True} if sampler is None else {"sampler": sampler}
        return DataLoader(self.part(Dataset) or Numbers(), batch_size=4, **order)

    def build_model(self) -> nn.Module:
        return self.part(nn.Module) or nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 1))

    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters())

    def forward(self, input: Any) -> Any:
        return self.model(input).square().mean(), {}

    def build_hooks(self) -> list[BaseHook]:
        own = self.part(BaseHook)
        return [
            *([own] if own else []),
            CheckpointingHook(interval=100),
            TraceHook(str(self.trace)),
        ]


def compare(tmp_path: Path, fault: Any) -> TraceComparison:
    """Train six steps, straight and with a stop after the third."""
    copies = []
    for name, ends in (("straight", [None]), ("stopped", [3, None])):
        copies.append(Traced(RunFolder(tmp_path / name), tmp_path / f"{name}-trace"))
        copies[-1].trace.mkdir()
        for end in ends:
            torch.manual_seed(0)
            Toy(copies[-1].folder.path, copies[-1].trace, fault, end).train()
    return TraceComparison(copies[0], copies[1], 3)


def test_a_training_that_stores_its_state_is_equal(tmp_path):
    found = compare(tmp_path, Saved)
    assert (found.diff.texts(), found.first(), list(found.report())) == ([], None, [])
    assert found.diff.tensors == 8


BEFORE = "This training does not repeat even without a stop: the dataset, the sampler"


@pytest.mark.parametrize(
    ("fault", "first", "named"),
    [
        (Unsaved, (4, 0, "loss"), ["model.mean is ", "model.calls is 0 inst"]),
        (Counted, (4, 0, "samples"), ["data_loader.dataset.reads is 0 instead of 12."]),
        (OwnOrder, (4, 0, "samples"), ["data_loader.sampler.own.generator is g"]),
        (Drawing, (4, 0, "random state"), ["hooks.Drawing.is_first is True"]),
        (ByTheClock, (1, 0, "samples"), []),
    ],
)
def test_a_planted_fault_is_named(tmp_path, fault, first, named):
    found = compare(tmp_path, fault)
    report = list(found.report())
    assert found.first() == first, report
    for text in [f"Not restored: {each}" for each in named] or [BEFORE]:
        assert any(line.startswith(text) for line in report), report
    assert any(line.startswith("checkpoint, ") for line in report)
