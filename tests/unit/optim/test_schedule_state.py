"""Schedules over a resume: a longer or another one, with functions, by a metric."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as of_torch
from torch.optim.lr_scheduler import LRScheduler

from launcher.errors import ConfigError
from launcher.hooks.checkpointing import CheckpointingHook
from launcher.optim import optimizers, schedulers
from launcher.optim.schedule_state import ScheduleState
from support.toy import Toy

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


class Falling:
    """A factor as an object with an argument of its own."""

    def __init__(self, steps: int):
        self.steps = steps

    def __call__(self, step: int) -> float:
        return 1 - step / (2 * self.steps)


def falling(step: int, steps: int) -> float:
    return Falling(steps)(step)


def in_sequence(optimizer: Any, steps: int) -> Any:
    parts = [
        of_torch.LinearLR(optimizer, 0.1, total_iters=steps // 4),
        of_torch.CosineAnnealingLR(optimizer, steps),
    ]
    return of_torch.SequentialLR(optimizer, parts, [steps // 4])


def chained(optimizer: Any, steps: int) -> Any:
    function = of_torch.LambdaLR(optimizer, lambda step: 1 - step / (2 * steps))
    return of_torch.ChainedScheduler([function, of_torch.ExponentialLR(optimizer, 1 - 1 / steps)])


TORCHS: dict[str, Callable[[Any, int], Any]] = {
    "LambdaLR": lambda o, n: of_torch.LambdaLR(o, lambda step: 1 - step / (2 * n)),
    "LambdaLR of an object": lambda o, n: of_torch.LambdaLR(o, Falling(n)),
    "LambdaLR of a partial": lambda o, n: of_torch.LambdaLR(o, partial(falling, steps=n)),
    "MultiplicativeLR": lambda o, n: of_torch.MultiplicativeLR(o, lambda step: 1 - 1 / n),
    "StepLR": lambda o, n: of_torch.StepLR(o, n // 4),
    "MultiStepLR": lambda o, n: of_torch.MultiStepLR(o, [n // 3, n // 2, n - 1]),
    "ConstantLR": lambda o, n: of_torch.ConstantLR(o, total_iters=n - 3),
    "LinearLR": lambda o, n: of_torch.LinearLR(o, 1.0, 0.1, total_iters=n),
    "ExponentialLR": lambda o, n: of_torch.ExponentialLR(o, 0.01 ** (1 / n)),
    "PolynomialLR": lambda o, n: of_torch.PolynomialLR(o, n, 2.0),
    "CosineAnnealingLR": lambda o, n: of_torch.CosineAnnealingLR(o, n),
    "CosineAnnealingWarmRestarts": lambda o, n: of_torch.CosineAnnealingWarmRestarts(o, n // 3, 2),
    "CyclicLR": lambda o, n: of_torch.CyclicLR(o, 0.01, 0.1 + 1 / n, n // 4),
    "CyclicLR of a function": lambda o, n: of_torch.CyclicLR(
        o, 0.01, 0.1, 4, scale_fn=lambda x: 1 / (n + x)
    ),
    "OneCycleLR": lambda o, n: of_torch.OneCycleLR(o, 1 + 1 / n, total_steps=n),
    "SequentialLR": in_sequence,
    "ChainedScheduler": chained,
}


WITH_FUNCTIONS = {"MultiplicativeLR", "CyclicLR of a function"}
"""Schedules with a function, which counts from the checkpoint on if it has changed."""


def schedule(name: str, steps: int) -> Callable[..., Any] | None:
    if name in TORCHS:
        return lambda optimizer: TORCHS[name](optimizer, steps)
    if name == "none":
        return None
    if name == "plateau":
        return partial(of_torch.ReduceLROnPlateau, patience=0)
    return OURS[name] if name == "constant" else partial(OURS[name], max_steps=steps)


class Loop:
    """Steps of an optimizer and its schedule."""

    def __init__(self, steps: int, name: str, optimizer: str = "sgd"):
        make = schedule(name, steps)
        self.optimizer = OPTIMIZERS[optimizer](layers())
        self.scheduler = None if make is None else make(self.optimizer)
        self.state = ScheduleState(self.optimizer, self.scheduler)

    def run(self, steps: int) -> list[Any]:
        """Return the rates of each step."""
        seen = []
        for _ in range(steps):
            seen.append(rates(self.optimizer))
            self.optimizer.step()
            if self.scheduler is not None:
                metric = [1.0] if schedulers.needs_metric(self.scheduler) else []
                self.scheduler.step(*metric)
        return seen

    def saved(self) -> dict[str, Any]:
        state = None if self.scheduler is None else self.scheduler.state_dict()
        return deepcopy({"lr_scheduler": state, "lr_arguments": self.state.arguments})


def layers() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(3)), torch.nn.Linear(2, 1))


def rates(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [
        [float(group["lr"]), group.get("momentum"), group.get("betas")]
        for group in optimizer.param_groups
    ]


SCHEDULES = ["cosine", "constant", "PolynomialLR", "OneCycleLR", "none"]
CHANGES = [
    *((name, name, "sgd") for name in [*OURS, *TORCHS, "none"] if name not in WITH_FUNCTIONS),
    *((name, name, "adamw") for name in ("OneCycleLR", "CyclicLR")),
    *(("linear", "linear", optimizer) for optimizer in OPTIMIZERS if optimizer != "sgd"),
    *zip(SCHEDULES, [*SCHEDULES[1:], SCHEDULES[0]], ["sgd"] * 5, strict=True),
    *(("plateau", now, "sgd") for now in SCHEDULES),
]


@pytest.mark.parametrize(("before", "now", "optimizer"), CHANGES)
def test_a_longer_or_another_schedule_has_the_rates_of_a_run_that_had_it_from_the_first_step(
    before, now, optimizer
):
    first, resumed = Loop(6, before, optimizer), Loop(12, now, optimizer)
    first.run(6)
    resumed.optimizer.load_state_dict(first.optimizer.state_dict())
    resumed.state.restore(first.saved(), 6, takes_rates=False)
    assert resumed.run(6) == Loop(12, now, optimizer).run(12)[6:]


class Rates(Toy):
    """Keeps the rates of each step."""

    def __init__(self, folder: Path, steps: int, scheduler: Any):
        super().__init__([CheckpointingHook(interval=steps)], steps, folder)
        self.make = scheduler
        self.seen: list[Any] = []

    def build_model(self) -> torch.nn.Module:
        return layers()

    def build_optimizer(self) -> torch.optim.Optimizer:
        return OPTIMIZERS["sgd"](self.model)

    def build_lr_scheduler(self) -> Any:
        return self.make(self.optimizer)

    def forward(self, input: torch.Tensor) -> Any:
        self.seen.append(rates(self.optimizer))
        return super().forward(input)


def trained(*args: Any) -> Rates:
    trainer = Rates(*args)
    trainer.train()
    return trainer


def test_an_extended_run_has_the_rates_of_a_run_of_that_length(tmp_path):
    trained(tmp_path / "parts", 3, schedule("linear", 3))
    parts = trained(tmp_path / "parts", 6, schedule("linear", 6))
    assert parts.seen == trained(tmp_path / "whole", 6, schedule("linear", 6)).seen[3:]


@pytest.mark.parametrize(
    "name",
    ["wsd", "LambdaLR of an object", "MultiplicativeLR", "CyclicLR of a function", "SequentialLR"],
)
def test_a_straight_resume_has_the_rates_and_weights_of_one_run(tmp_path, name):
    make = schedule(name, 8)
    whole = trained(tmp_path / "whole", 8, make)
    first = Rates(tmp_path / "parts", 8, make)
    first.pause_at = 5
    first.train()
    parts = trained(tmp_path / "parts", 8, make)
    assert first.seen + parts.seen == whole.seen
    state, expected = (trainer.model.state_dict() for trainer in (parts, whole))
    assert all(torch.equal(state[key], expected[key]) for key in expected)


def test_every_schedule_of_torch_is_in_the_table():
    kinds = {
        name
        for name, kind in vars(of_torch).items()
        if isinstance(kind, type) and issubclass(kind, LRScheduler) and not name.startswith("_")
    }
    tried = {name.partition(" ")[0] for name in TORCHS}
    assert kinds - {"LRScheduler", "ReduceLROnPlateau"} == tried


def test_a_rate_in_a_tensor_stays_the_same_tensor():
    def made(steps: int) -> tuple[torch.Tensor, Any, ScheduleState]:
        lr = torch.tensor(0.1)
        optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=lr)
        scheduler = schedulers.linear(optimizer, max_steps=steps, warmup_steps=0)
        return lr, scheduler, ScheduleState(optimizer, scheduler)

    _, before, initial = made(4)
    for _ in range(4):
        before.optimizer.step()
        before.step()
    lr, scheduler, now = made(8)
    saved = {"lr_scheduler": before.state_dict(), "lr_arguments": initial.arguments}
    now.restore(saved, 4, takes_rates=True)
    assert scheduler.optimizer.param_groups[0]["lr"] is lr and lr.item() == pytest.approx(0.05)


def test_a_schedule_by_a_metric_keeps_its_counters_and_takes_new_arguments():
    def made(lr: float, **arguments: Any) -> tuple[Any, ScheduleState]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
        scheduler = of_torch.ReduceLROnPlateau(optimizer, **arguments)
        return scheduler, ScheduleState(optimizer, scheduler)

    before, initial = made(0.5, factor=0.5, patience=1)
    for metric in (3.0, 4.0, 4.0, 4.0):
        before.step(metric)
    saved = {"lr_scheduler": before.state_dict(), "lr_arguments": initial.arguments}
    assert before.optimizer.param_groups[0]["lr"] == 0.25 and before.num_bad_epochs == 1
    for lr, patience, expected in ((0.5, 5, 0.25), (1.0, 1, 0.5)):
        now, state = made(lr, factor=0.5, patience=patience)
        now.optimizer.load_state_dict(before.optimizer.state_dict())
        state.restore(saved, 4, takes_rates=True)
        assert (now.best, now.num_bad_epochs, now.patience) == (3.0, 1, patience)
        assert now.optimizer.param_groups[0]["lr"] == expected


def test_a_schedule_that_is_too_short_for_the_checkpoint_is_rejected(tmp_path):
    trained(tmp_path, 6, schedule("OneCycleLR", 6))
    make = schedule("OneCycleLR", 5)
    with pytest.raises(
        ConfigError,
        match=r"^scheduler: OneCycleLR has no rate after 6 updates, which the checkpoint has",
    ):
        trained(tmp_path, 12, make)
