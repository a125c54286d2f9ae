"""Logged records of a step: the learning rate it was taken with, losses that are not finite,
numbers of any kind; and the last step, whichever it turns out to be."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from launcher import BaseHook, EvaluationHook, FunctionHook, LoggingHook
from launcher.hooks.memory import MemoryHook
from launcher.hooks.skip_spikes import SkipSpikesHook
from launcher.hooks.throughput import ThroughputHook
from support.toy import GOOD, Recorder, Toy


class Odd(Toy):
    """The learning rate is a tensor; in step 2 the loss is infinite and its gradient is not."""

    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=torch.tensor(0.1))

    def build_lr_scheduler(self) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)

    def forward(self, input: torch.Tensor) -> Any:
        loss, _ = super().forward(input)
        offset = math.inf if self.step == 2 and self.model.training else 0.0
        return loss + offset, {
            "f": np.float32(0.5),
            "none": None,
            "sometimes": None if self.step == 1 else 3,
        }


def test_of_this_step(tmp_path, caplog):
    recorder = Recorder()
    Odd([LoggingHook(1), recorder], 3, tmp_path, [GOOD], gradient_accumulation_steps=2).train()
    logged = [records["train"] for _, records in recorder.records]
    assert [line["lr"]["group_0"] for line in logged] == pytest.approx([0.1, 0.05, 0.025])
    assert [line["f"] for line in logged] == [0.5] * 3
    assert not any("none" in line for line in logged)
    assert [line.get("sometimes") for line in logged] == [None, 3, 3]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [
        "Step 2: the loss was not finite in 1 of the last 1 steps, although the gradient was."
    ]


def test_logging_has_means_and_the_rate_before_the_step(tmp_path):
    logged = Recorder()
    trainer = Toy([LoggingHook(interval=2), logged], 5, tmp_path, gradient_accumulation_steps=3)
    trainer.train()
    assert [step for step, _ in logged.records] == [2, 4, 5], "the last step is logged in any case"
    train = logged.records[0][1]["train"]
    assert set(train) == {
        "size", "aux", "loss", "grad_norm", "lr", "step_time", "data_time",
        "non_finite_grad_retry_count"
    }  # fmt: skip
    assert train["size"] == 4.0
    assert train["lr"] == dict.fromkeys(["0.weight", "0.bias", "2.weight", "2.bias"], 0.05), (
        "step 2 ran at 0.1 * 0.5"
    )
    assert train["aux"]["l"] == pytest.approx(train["loss"])


INTERVAL = 4
HOOKS: dict[str, Callable[[], BaseHook]] = {
    "train": lambda: LoggingHook(INTERVAL),
    "val": lambda: EvaluationHook(INTERVAL, lambda: [GOOD], at_start=False),
    "memory": lambda: MemoryHook(INTERVAL),
    "spikes": lambda: SkipSpikesHook(interval=INTERVAL),
    "throughput": lambda: ThroughputHook(INTERVAL),
}


@pytest.mark.parametrize("ends_by", ["max_steps", "on_after_step", "on_epoch_end"])
@pytest.mark.parametrize("last", [2 * INTERVAL - 1, 2 * INTERVAL])
@pytest.mark.parametrize("group", HOOKS)
def test_last_step_is_logged_once(group, last, ends_by, tmp_path):
    def stop(trainer: Any) -> None:
        if trainer.step == last:
            trainer.state.stop("on purpose")

    recorder, hooks = Recorder(), [HOOKS[group]()]
    if ends_by == "max_steps":
        Toy([*hooks, recorder], last, tmp_path, batches=[GOOD]).train()
    else:
        stops = FunctionHook(**{ends_by: stop})
        Toy([*hooks, recorder, stops], 100, tmp_path, batches=[GOOD]).train()
    assert [step for step, _ in recorder.of(group)] == [INTERVAL, last]


class Labelled(Toy):
    """A model whose batches have a number of targets."""

    def num_targets(self, input: torch.Tensor) -> torch.Tensor:
        return (input > 0).sum()


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize(("interval", "reported"), [(1, [1, 2, 4]), (3, [3, 5]), (5, [5])])
def test_steps_without_a_target_are_reported_at_the_first_second_fourth(
    tmp_path, caplog, accumulated, interval, reported
):
    batches = [torch.zeros_like(GOOD)]
    hooks = [LoggingHook(interval)]
    options = {"gradient_accumulation_steps": accumulated}
    Labelled(hooks, 5, tmp_path, batches, **options).train()
    found = [re.match(r"Step \d+: (\d+) steps? had no target", each) for each in caplog.messages]
    assert [int(each[1]) for each in found if each] == reported
    caplog.clear()
    Labelled([LoggingHook(interval)], 5, tmp_path / "b", [GOOD], **options).train()
    Toy([LoggingHook(interval)], 5, tmp_path / "c", batches, **options).train()
    assert not caplog.messages
