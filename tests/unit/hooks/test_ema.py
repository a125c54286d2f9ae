"""Averages of the weights: their values, and where they are used."""

import copy
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from launcher import BaseHook, CheckpointingHook, EmaHook, EvaluationHook, FunctionHook
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.errors import ConfigError
from support.toy import GOOD, Recorder, Toy


class Kept(BaseHook):
    """Copies of the weights at first and after each step; torch's own average."""

    def on_before_train(self, trainer: Any) -> None:
        self.initial = copy.deepcopy(trainer.model.state_dict())
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


def test_the_values_are_those_of_torch(tmp_path):
    hook, kept = EmaHook(decay=0.9), Kept()
    Toy([hook, kept], 5, tmp_path).train()
    assert parameters(hook.ema_model) == parameters(kept.average)


@pytest.mark.parametrize(
    "settings",
    [
        {"start": 4},
        {"interval": 2, "warmup": 4},
        {"start": "initial"},
        {"start": "initial", "warmup": 3},
    ],
)
def test_the_average_after_each_step(tmp_path, settings):
    hook, kept, found = EmaHook([0.9, 0.1], **settings), Kept(), []
    note = FunctionHook(on_after_step=lambda trainer: found.append(averages(hook, trainer)))
    Toy([kept, hook, note], 7, tmp_path).train()
    warmup, interval, start = (settings.get(key, 0) for key in ("warmup", "interval", "start"))
    for decay in (0.9, 0.1):
        expected = kept.initial["0.bias"] if start == "initial" else None
        updates = 0
        for step, weights in enumerate(kept.weights, 1):
            if step % (interval or 1):
                continue
            if expected is None or (start != "initial" and step <= start):
                expected = weights["0.bias"]
            else:
                present = min(decay, (1 + updates) / (warmup + updates)) if warmup else decay
                present **= interval or 1
                expected = present * expected + (1 - present) * weights["0.bias"]
            updates += 1
            value = found[step - 1][f"ema/{decay}/0.bias"]
            assert value == pytest.approx(expected.tolist(), abs=1e-6), step


@pytest.mark.parametrize(
    ("dtype", "wide"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)]
)
def test_averages_of_16_bit_weights_are_wide(tmp_path, dtype, wide):
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


def test_complex_weights_and_buffers_are_averaged(tmp_path):
    class Turned(Toy):
        def build_model(self) -> torch.nn.Module:
            model: Any = super().build_model()
            model.register_parameter("turn", torch.nn.Parameter(torch.full((2,), 1 + 1j)))
            model.register_buffer("last", torch.zeros(2, dtype=torch.complex64))
            return model

        def forward(self, input: torch.Tensor) -> Any:
            model: Any = self.model
            turned = input * model.turn
            model.last.copy_(turned.detach().mean(0))
            return super().forward(turned.abs())

    hook, kept = EmaHook(0.9, use_buffers=True), Kept()
    trainer = Turned([hook, kept], 5, tmp_path)
    trainer.train()
    tensors = hook.state_tensors(trainer)
    average, weights = tensors["ema/0.9/turn"].values, [w["turn"] for w in kept.weights]
    expected = weights[0]
    for weight in weights[1:]:
        expected = 0.9 * expected + 0.1 * weight
    assert average.dtype == torch.complex64
    torch.testing.assert_close(average, expected)
    assert torch.equal(average, kept.average.module.turn)
    assert tensors["ema/0.9/last"].values.abs().min() > 0


@pytest.mark.parametrize("use_buffers", [False, True])
def test_buffers(tmp_path, use_buffers):
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
def test_the_average_is_evaluated_and_the_weights_come_back(tmp_path, first):
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


def test_the_weights_are_evaluated_unless_the_average_is_asked_for(tmp_path):
    with_average, without = Recorder(), Recorder()
    Toy([EmaHook(0.9), EvaluationHook(2, lambda: [GOOD]), with_average], 4, tmp_path).train()
    Toy([EvaluationHook(2, lambda: [GOOD]), without], 4, tmp_path).train()
    assert with_average.records[-1][1]["val"] == without.records[-1][1]["val"]


def test_a_resumed_average_is_that_of_one_run(tmp_path):
    whole, resumed = EmaHook([0.9, 0.5], warmup=2), EmaHook([0.9, 0.5], warmup=2)
    trainer = Toy([whole, CheckpointingHook(1)], 5, tmp_path / "whole", [GOOD])
    trainer.train()
    Toy(
        [EmaHook([0.9, 0.5], warmup=2), CheckpointingHook(1)], 2, tmp_path / "parts", [GOOD]
    ).train()
    again = Toy([CheckpointingHook(1), resumed], 5, tmp_path / "parts", [GOOD])
    again.train()
    assert averages(resumed, again) == averages(whole, trainer)
    in_memory = EmaHook([0.9, 0.5])
    other = Toy([in_memory], 5, tmp_path, [GOOD])
    other.build()
    other.load_state_dict(trainer.state_dict())
    other.train()
    assert averages(in_memory, other) == averages(whole, trainer)


def test_a_hook_that_the_checkpoint_does_not_know_starts_from_its_weights(tmp_path, caplog):
    Toy([EmaHook(0.9), CheckpointingHook(1)], 2, tmp_path).train()
    hook = EmaHook([0.9, 0.5])
    trainer = Toy([hook, CheckpointingHook(1)], 2, tmp_path)
    trainer.train()
    assert "no average of decay 0.5: it starts from the current weights" in caplog.text
    values = averages(hook, trainer)
    assert values["ema/0.5/0.bias"] == trainer.model[0].bias.tolist() != values["ema/0.9/0.bias"]


def test_the_average_of_a_stored_checkpoint(tmp_path):
    hook = EmaHook([0.9, 0.5])
    trainer = Toy([hook, CheckpointingHook(1)], 3, tmp_path)
    trainer.train()
    path = tmp_path / "checkpoints" / "latest"
    for which, message in (
        ("ema", "there are ema/0.5, ema/0.9; name one"),
        ("mean", "it has ema/0.5, ema/0.9"),
    ):
        with pytest.raises(ConfigError, match=message):
            StoredCheckpoint(path).use_weights(which)
    stored = StoredCheckpoint(path)
    stored.use_weights("ema/0.9")
    assert stored.read("model/0.bias").tolist() == averages(hook, trainer)["ema/0.9/0.bias"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decay": []}, "hooks.ema.decay"),
        ({"decay": [0.9, 0.9]}, "hooks.ema.decay"),
        ({"decay": [0.9, 1.5]}, "hooks.ema.decay"),
        ({"name": ""}, "hooks.ema.name"),
        ({"name": "model"}, "hooks.ema.name"),
        ({"name": "a/b"}, "hooks.ema.name"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        EmaHook(**settings)


def test_two_hooks(tmp_path):
    other = EmaHook([0.0, 1.0], name="other", evaluate=True)
    Toy([EmaHook(0.9), other, CheckpointingHook(1)], 1, tmp_path / "a").train()
    with pytest.raises(ConfigError, match="give them different names"):
        Toy([EmaHook(0.9), EmaHook(0.9), CheckpointingHook(1)], 1, tmp_path / "b").train()
    with pytest.raises(ConfigError, match="only one hook can replace the weights"):
        Toy([EmaHook(0.9, evaluate=True), EmaHook(0.5, evaluate=True)], 1, tmp_path / "c").train()
