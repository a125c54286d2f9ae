"""Intervals in steps and in epochs, whose length is seldom a whole number of steps."""

from pathlib import Path
from typing import Any

import pytest

from launcher import BaseHook, CheckpointingHook, EvaluationHook, FunctionHook
from launcher.errors import ConfigError
from launcher.hooks.interval import Interval
from support.toy import GOOD, Recorder, Toy


class Epochs(BaseHook):
    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def on_epoch_start(self, trainer: Any) -> None:
        self.events.append(("start", trainer.step))

    def on_epoch_end(self, trainer: Any) -> None:
        self.events.append(("end", trainer.step))


def trainer(folder: Path, hooks: list[BaseHook], batches: int = 3, max_steps: int = 5) -> Toy:
    """An epoch is 1.5 steps of two micro-batches each."""
    return Toy(hooks, max_steps, folder, batches=[GOOD] * batches, gradient_accumulation_steps=2)


def test_an_epoch_ends_with_the_step_that_takes_its_last_sample(tmp_path):
    epochs, recorder = Epochs(), Recorder()
    evaluation = EvaluationHook("1epoch", loader=lambda: [GOOD], at_start=False)
    trainer(tmp_path, [epochs, evaluation, recorder, CheckpointingHook("2 epochs", 9)]).train()
    assert [step for kind, step in epochs.events if kind == "end"] == [2, 3, 5]
    assert [step for kind, step in epochs.events if kind == "start"] == [1, 3, 4]
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

    epochs = Epochs()
    Toy([epochs], 2, tmp_path, batches=Endless()).train()
    assert epochs.events == []
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
