"""State that a trainer stores next to model, optimizer and hooks."""

import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR

from launcher.hooks.checkpointing import CheckpointingHook
from launcher.optim import optimizers, schedulers
from support.toy import GOOD, Toy


class Scaled(Toy):
    def build_grad_scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=8.0)


def built(folder: Path, kind: type[Toy] = Scaled, batches: Any = None) -> Toy:
    trainer = kind([], 9, folder, batches)
    trainer.build()
    return trainer


def test_all_of_it_is_restored(tmp_path: Path) -> None:
    trainer = built(tmp_path)
    trainer.state.step, trainer.state.epoch, trainer.state.stop_reason = 7, 2, "early stopping"
    trainer.state.skipped_steps, trainer.state.skipped_in_row = 5, 3
    trainer.lr_scheduler.last_epoch = 4
    trainer.grad_scaler.load_state_dict({**trainer.grad_scaler.state_dict(), "scale": 2.0})
    saved = trainer.training_state()
    assert saved["data_loader"] is not None
    other = built(tmp_path)
    assert other.training_state() != saved
    other.load_training_state(saved)
    assert other.training_state() == saved


def test_a_state_of_an_older_version_counts_from_zero(tmp_path: Path) -> None:
    trainer = built(tmp_path, Toy)
    fresh = trainer.training_state()
    trainer.state.skipped_steps = trainer.state.skipped_in_row = trainer.state.epoch = 1
    trainer.state.stop_reason = "early stopping"
    trainer.load_training_state({"step": 0, "lr_scheduler": None, "grad_scaler": {}})
    assert trainer.training_state() == fresh


class Constant(Scaled):
    def build_lr_scheduler(self) -> Any:
        return None


@pytest.mark.parametrize(
    ("before", "now"), [(Scaled, Toy), (Toy, Scaled), (Scaled, Constant), (Constant, Scaled)]
)
def test_state_that_only_one_of_two_runs_has_is_not_loaded(
    tmp_path: Path, before: type[Toy], now: type[Toy]
) -> None:
    """Another precision or schedule after a rollback."""
    trainer = built(tmp_path, now)
    fresh = trainer.training_state()
    trainer.load_training_state(built(tmp_path, before).training_state())
    for key in ("grad_scaler", "lr_scheduler"):
        assert trainer.training_state()[key] == fresh[key]


@pytest.mark.parametrize(
    ("step", "batches", "warning"),
    [
        (0, [GOOD], None),
        (
            1,
            [GOOD],
            (
                "order starts from the beginning: list is not a plain DataLoader and has no"
                " state_dict()."
            ),
        ),
        (1, None, "order starts from the beginning: the checkpoint has no position."),
    ],
)
def test_a_lost_position_is_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, step: int, batches: Any, warning: str | None
) -> None:
    saved = built(tmp_path, batches=[GOOD]).training_state()
    built(tmp_path, batches=batches).load_training_state(saved | {"step": step})
    assert (warning in caplog.text) if warning else not caplog.text


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "adamw": partial(optimizers.adamw, lr=0.1),
    "sgd": partial(optimizers.sgd, lr=0.1, momentum=0.9),
}
if hasattr(torch.optim, "Muon"):  # since torch 2.9
    OPTIMIZERS["muon"] = partial(optimizers.muon, lr=0.1)
OURS = {
    name: partial(getattr(schedulers, name), **({} if name == "constant" else {"warmup_steps": 2}))
    for name in ("cosine", "linear", "wsd", "constant_with_warmup", "constant")
}


def schedule(name: str, steps: int) -> Callable[..., Any] | None:
    if name == "none":
        return None
    if name == "plateau":
        return partial(ReduceLROnPlateau, patience=0)
    return OURS[name] if name == "constant" else partial(OURS[name], max_steps=steps)


class Rates(Toy):
    """Keeps the rates of each step, and how far each step moves a weight."""

    def __init__(self, folder: Path, steps: int, scheduler: Any, optimizer: str = "sgd"):
        super().__init__([CheckpointingHook(interval=steps)], steps, folder)
        self.make, self.make_optimizer, self.seen, self.moved = (
            scheduler,
            OPTIMIZERS[optimizer],
            [],
            [],
        )

    def build_model(self) -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            *(torch.nn.Linear(2, 2) for _ in range(3)), torch.nn.Linear(2, 1)
        )

    def build_optimizer(self) -> torch.optim.Optimizer:
        return self.make_optimizer(self.model)

    def build_lr_scheduler(self) -> Any:
        return None if self.make is None else self.make(self.optimizer)

    def forward(self, input: torch.Tensor) -> Any:
        self.seen.append([float(group["lr"]) for group in self.optimizer.param_groups])
        self.moved.append([p.detach().clone() for p in self.model.parameters()])
        return super().forward(input)


def trained(*args: Any) -> Rates:
    trainer = Rates(*args)
    trainer.train()
    return trainer


Trained = Callable[..., Rates]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Runs by their number of steps, schedule and optimizer, each of them trained once."""

    @cache
    def run(steps: int, name: str, optimizer: str = "sgd") -> Rates:
        folder = tmp_path_factory.mktemp("run") / "name"
        return trained(folder, steps, schedule(name, steps), optimizer)

    return run


def extended(folder: Path, first: Rates, name: str, optimizer: str = "sgd") -> Rates:
    """A run of 12 steps that resumes a copy of the first one."""
    shutil.copytree(first.workspace, folder / "name", symlinks=True)
    return trained(folder / "name", 12, schedule(name, 12), optimizer)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [*((name, "sgd") for name in [*OURS, "none"]), *(("linear", other) for other in OPTIMIZERS)],
)
def test_an_extended_run_has_the_rates_of_a_run_of_that_length(
    run_of: Trained, tmp_path: Path, name: str, optimizer: str
) -> None:
    parts = extended(tmp_path, run_of(6, name, optimizer), name, optimizer)
    assert parts.seen == run_of(12, name, optimizer).seen[6:], "from its first step"
    assert any(not torch.equal(a, b) for a, b in zip(parts.moved[0], parts.moved[1], strict=True))


SCHEDULES = [*OURS, "none"]
CHANGES = [
    *zip(SCHEDULES, [*SCHEDULES[1:], SCHEDULES[0]], strict=True),
    *(("plateau", now) for now in SCHEDULES),
]


@pytest.mark.parametrize(("before", "now"), CHANGES)
def test_a_changed_schedule_is_followed_from_the_step_of_the_checkpoint(
    run_of: Trained, tmp_path: Path, before: str, now: str
) -> None:
    assert extended(tmp_path, run_of(6, before), now).seen == run_of(12, now).seen[6:]


@pytest.mark.parametrize(
    "make",
    [
        *(schedule(name, 12) for name in OURS),
        partial(StepLR, step_size=5),
        partial(OneCycleLR, max_lr=1, total_steps=13),
    ],
)
def test_a_straight_resume_has_the_rates_and_weights_of_one_run(tmp_path: Path, make: Any) -> None:
    whole = trained(tmp_path / "whole", 12, make)
    first = Rates(tmp_path / "parts", 12, make)
    first.pause_at = 7
    first.train()
    parts = trained(tmp_path / "parts", 12, make)
    assert first.seen + parts.seen == whole.seen
    state, expected = (trainer.model.state_dict() for trainer in (parts, whole))
    assert all(torch.equal(state[key], expected[key]) for key in expected)


def test_a_rate_that_a_hook_has_set_is_kept_under_an_unchanged_schedule(tmp_path: Path) -> None:
    trainer = built(tmp_path, Toy)
    schedulers.set_rate(trainer.optimizer.param_groups[0], 7.0)
    schedulers.set_rates(trainer.optimizer, trainer.lr_scheduler, trainer.lr_scheduler.state_dict())
    assert trainer.optimizer.param_groups[0]["lr"] == 7.0


def test_a_rate_in_a_tensor_stays_the_same_tensor() -> None:
    lr = torch.tensor(0.1)
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    saved = schedulers.linear(optimizer, max_steps=4, warmup_steps=0).state_dict()
    scheduler = schedulers.linear(optimizer, max_steps=8, warmup_steps=0)
    schedulers.load_schedule(
        scheduler, saved | {"last_epoch": 4, "_last_lr": [torch.tensor(0.0)]}, 4
    )
    schedulers.set_rates(optimizer, scheduler, saved | {"_last_lr": [torch.tensor(0.0)]})
    assert optimizer.param_groups[0]["lr"] is lr and lr.item() == pytest.approx(0.05)
