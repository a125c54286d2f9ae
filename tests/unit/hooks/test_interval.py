"""Intervals in steps and in epochs, whose length is seldom a whole number of steps."""

from typing import Any

import pytest

from launcher import CheckpointingHook, EvaluationHook, FunctionHook
from launcher.errors import ConfigError
from launcher.hooks.interval import Interval
from support.toy import GOOD, Recorder, Toy


def epochs() -> tuple[FunctionHook, list[int], list[int]]:
    """A hook, and the steps at which it sees an epoch start and end."""
    starts: list[int] = []
    ends: list[int] = []
    hook = FunctionHook(
        on_epoch_start=lambda trainer: starts.append(trainer.step),
        on_epoch_end=lambda trainer: ends.append(trainer.step),
    )
    return hook, starts, ends


def test_an_epoch_ends_with_the_step_that_takes_its_last_sample(tmp_path):
    """An epoch is 1.5 steps of two micro-batches each."""
    (hook, starts, ends), recorder = epochs(), Recorder()
    evaluation = EvaluationHook("1epoch", loader=lambda: [GOOD], at_start=False)
    hooks = [hook, evaluation, recorder, CheckpointingHook("2 epochs", 9)]
    Toy(hooks, 5, tmp_path, batches=[GOOD] * 3, gradient_accumulation_steps=2).train()
    assert (starts, ends) == ([1, 3, 4], [2, 3, 5])
    assert [step for step, _ in recorder.records] == [2, 3, 5]
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*")) == [
        "step-00000003",
        "step-00000005",
    ]


@pytest.mark.parametrize("value", ["abc", "epoch", "0epoch", "-1epoch", "1 step"])
def test_invalid_interval_is_rejected(value):
    with pytest.raises(
        ConfigError, match=f"^hooks.x.interval={value}: must be a number of steps, or of epochs"
    ):
        Interval(value, "hooks.x.interval")


def test_data_without_a_length_have_no_epochs(tmp_path):
    class Endless:
        def __iter__(self) -> Any:
            return iter([GOOD, GOOD])

    hook, starts, ends = epochs()
    Toy([hook], 2, tmp_path, batches=Endless()).train()
    assert starts == ends == []
    for hook in (
        EvaluationHook("1epoch", loader=lambda: [GOOD], at_start=False),
        CheckpointingHook("1epoch"),
    ):
        begun: list[Any] = []
        with pytest.raises(
            ConfigError, match="interval=1epoch: the training data have no length; set it in steps"
        ):
            Toy([FunctionHook(on_ready=begun.append), hook], 2, tmp_path, batches=Endless()).train()
        assert begun == [], "a run writes that it has begun in on_ready"
