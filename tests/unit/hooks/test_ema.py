"""Averages of the weights: their values, and where they are used."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from launcher import BaseHook, CheckpointingHook, EmaHook, EvaluationHook, FunctionHook
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.errors import ConfigError
from support.toy import GOOD, Recorder, Toy


class Kept(BaseHook):
    """Copies of the weights after each step; torch's own average."""

    def on_before_train(self, trainer: Any) -> None:
        self.weights: list[dict[str, torch.Tensor]] = []
        self.average = AveragedModel(trainer.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def on_after_step(self, trainer: Any) -> None:
        self.weights.append(copy.deepcopy(trainer.model.state_dict()))
        self.average.update_parameters(trainer.model)


def parameters(model: Any) -> list[Any]:
    return [p.tolist() for p in model.parameters()]


def averages(hook: EmaHook, trainer: Toy) -> dict[str, Any]:
    return {
        name: companion.values.tolist() for name, companion in hook.state_tensors(trainer).items()
    }


def test_the_values_are_those_of_torch(tmp_path: Path) -> None:
    hook, kept = EmaHook(decay=0.9), Kept()
    Toy([hook, kept], 5, tmp_path).train()
    assert parameters(hook.ema_model) == parameters(kept.average)


@pytest.mark.parametrize("decay", [0.9, 0.1])
def test_warmup_and_interval(tmp_path: Path, decay: float) -> None:
    hook, kept = EmaHook(decay, interval=2, warmup=4), Kept()
    trainer = Toy([kept, hook], 7, tmp_path)
    trainer.train()
    expected, fourth, sixth = (kept.weights[step - 1]["0.bias"].double() for step in (2, 4, 6))
    for updates, weights in ((1, fourth), (2, sixth)):
        present = min(decay, (1 + updates) / (4 + updates)) ** 2
        expected = present * expected + (1 - present) * weights
    assert averages(hook, trainer)["ema/0.bias"] == pytest.approx(expected.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("dtype", "wide"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)]
)
def test_averages_of_16_bit_weights_are_wide(
    tmp_path: Path, dtype: torch.dtype, wide: torch.dtype
) -> None:
    class Other(Toy):
        def build_model(self) -> torch.nn.Module:
            return super().build_model().to(dtype)

        def forward(self, input: torch.Tensor) -> Any:
            return super().forward(input.to(dtype))

    hook = EmaHook(0.999)
    trainer = Other([hook], 3, tmp_path)
    trainer.train()
    assert {companion.values.dtype for companion in hook.state_tensors(trainer).values()} == {wide}
    assert {p.dtype for p in hook.ema_model.parameters()} == {wide}


@pytest.mark.parametrize("use_buffers", [False, True])
def test_buffers(tmp_path: Path, use_buffers: bool) -> None:
    class Normed(Toy):
        def build_model(self) -> torch.nn.Module:
            torch.manual_seed(0)
            return torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))

    hook = EmaHook(0.9, use_buffers=use_buffers)
    trainer = Normed(
        [hook, FunctionHook(on_after_step=lambda trainer: hook.ema_model)], 4, tmp_path
    )
    trainer.train()
    present, averaged = (
        dict(model.named_buffers()) for model in (trainer.model, hook.ema_model.module)
    )
    assert torch.equal(present["0.running_mean"], averaged["0.running_mean"]) is not use_buffers
    assert averaged["0.num_batches_tracked"] == 4


@pytest.mark.parametrize("first", ["ema", "evaluation"])
def test_the_average_is_evaluated_and_the_weights_come_back(tmp_path: Path, first: str) -> None:
    hook, evaluation, logged, kept = (
        EmaHook(0.9, evaluate=True),
        EvaluationHook(2, lambda: [GOOD]),
        Recorder(),
        Kept(),
    )
    hooks = [hook, evaluation] if first == "ema" else [evaluation, hook]
    Toy([*hooks, logged, kept], 4, tmp_path).train()
    plain = Kept()
    trainer = Toy([plain], 4, tmp_path)
    trainer.train()
    assert parameters(trainer.model) == [value.tolist() for value in kept.weights[-1].values()]
    kept.average.eval()
    with torch.no_grad():
        averaged, present = (
            model.eval()(GOOD).pow(2).mean().item() for model in (kept.average, trainer.model)
        )
    assert logged.records[-1][1]["val"]["loss"] == pytest.approx(averaged, rel=1e-6) != present


def test_the_weights_are_evaluated_unless_the_average_is_asked_for(tmp_path: Path) -> None:
    with_average, without = Recorder(), Recorder()
    Toy([EmaHook(0.9), EvaluationHook(2, lambda: [GOOD]), with_average], 4, tmp_path).train()
    Toy([EvaluationHook(2, lambda: [GOOD]), without], 4, tmp_path).train()
    assert with_average.records[-1][1]["val"] == without.records[-1][1]["val"]


def test_a_resumed_average_is_that_of_one_run(tmp_path: Path) -> None:
    whole, first, resumed, in_memory = (EmaHook(0.9, warmup=2) for _ in range(4))
    trainer = Toy([whole, CheckpointingHook(1)], 5, tmp_path / "whole", [GOOD])
    trainer.train()
    Toy([first, CheckpointingHook(1)], 2, tmp_path / "parts", [GOOD]).train()
    again = Toy([CheckpointingHook(1), resumed], 5, tmp_path / "parts", [GOOD])
    again.train()
    assert averages(resumed, again) == averages(whole, trainer)
    other = Toy([in_memory], 5, tmp_path, [GOOD])
    other.build()
    other.load_state_dict(trainer.state_dict())
    other.train()
    assert averages(in_memory, other) == averages(whole, trainer)


def test_averages_in_a_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hook, other = EmaHook(0.9), EmaHook(0.5, name="other")
    trainer = Toy([hook, other, CheckpointingHook(1)], 3, tmp_path)
    trainer.train()
    path = tmp_path / "checkpoints" / "latest"
    for average in (hook, other):
        stored = StoredCheckpoint(path)
        stored.use_weights(average.name)
        values = averages(average, trainer)
        assert stored.read("model/0.bias").tolist() == values[f"{average.name}/0.bias"]
    with pytest.raises(ConfigError, match="it has ema, other"):
        StoredCheckpoint(path).use_weights("mean")
    new = EmaHook(0.5, name="new")
    again = Toy([EmaHook(0.9), new, CheckpointingHook(1)], 3, tmp_path)
    again.train()
    assert "no average new: it starts from the current weights" in caplog.text
    values = averages(new, again)
    assert values["new/0.bias"] == again.model[0].bias.tolist()
    assert values["new/0.bias"] != averages(hook, trainer)["ema/0.bias"]


@pytest.mark.parametrize("name", ["", "model", "evaluation", "a/b"])
def test_bad_names(name: str) -> None:
    with pytest.raises(ConfigError, match=r"hooks\.ema\.name"):
        EmaHook(name=name)


def test_two_hooks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give them different names"):
        Toy([EmaHook(0.9), EmaHook(0.9), CheckpointingHook(1)], 1, tmp_path / "b").train()
    with pytest.raises(ConfigError, match="only one hook can replace the weights"):
        Toy([EmaHook(0.9, evaluate=True), EmaHook(0.5, evaluate=True)], 1, tmp_path / "c").train()
