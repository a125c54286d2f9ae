"""Several optimizers: each computes its loss and updates its parameters in turn."""

import copy
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from launcher import BaseHook, BaseTrainer, CheckpointingHook
from launcher.errors import ConfigError, TrainingError
from launcher.hooks.gradients import GradientsHook
from launcher.hooks.nan_report import NanReportHook
from launcher.process import signals
from launcher.process.rng import restore_rng, rng_state
from launcher.rundir.folder import RunFolder
from launcher.strategies.base import Strategy
from launcher.train.build import build_trainer
from launcher.train.trainer import BaseTrainer as Loop
from support.composition import composed, run_of
from support.dcgan import ADAM, DCGAN, original
from support.toy import Recorder

STEPS = 12
ONE = "{_target_:torch.optim.Adam,lr:0.0002,betas:[0.5,0.999]}"
PARTS = [
    "optimizer=parts",
    f"optimizer.parts={{generator:{ONE},discriminator:{ONE}}}",
    "optimizer.turns=[discriminator,generator]",
]
DIGITS = (
    "data=digits model=mlp model._target_=support.dcgan.DCGAN data.batch_size=8 device=cpu"
    f" ~scheduler trainer.max_grad_norm=null trainer.max_steps={STEPS} hooks=[checkpointing]"
).split()


class Stop(BaseHook):
    """Sends SIGTERM within a step."""

    def __init__(self, step: int):
        self.step = step

    def on_before_optimizer_step(self, trainer: Any) -> None:
        if trainer.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


class Gan(BaseTrainer):
    """The example by subclass, on given batches."""

    def __init__(self, batches: list[Any], model: DCGAN, hooks: list[BaseHook], **settings: Any):
        super().__init__(**{"max_steps": len(batches), "device": "cpu", **settings})
        self.batches, self.own, self.given = batches, model, hooks

    def build_data_loader(self) -> Any:
        inputs, targets = map(torch.cat, zip(*self.batches, strict=True))
        data = torch.utils.data.TensorDataset(inputs, targets)
        return torch.utils.data.DataLoader(data, batch_size=len(self.batches[0][0]))

    def build_model(self) -> nn.Module:
        return self.own

    def build_optimizer(self) -> Any:
        return {
            name: torch.optim.Adam(getattr(self.model, name).parameters(), **ADAM)  # type: ignore[arg-type]
            for name in ("discriminator", "generator")
        }

    def build_hooks(self) -> list[BaseHook]:
        return self.given

    def forward(self, input: Any, optimizer: str | None = None) -> Any:
        return self.model(input, optimizer=optimizer)


def finish(make: Callable[[list[BaseHook]], Loop], rng: dict[str, Any]) -> Loop:
    """Train with a stop by SIGTERM in step 5 and a resume."""
    signals.install()
    restore_rng(rng)
    stopped = make([Stop(5)])
    with pytest.raises(signals.SignalExit) as end:
        stopped.train()
    assert end.value.code == 128 + signal.SIGTERM and stopped.step == 5
    resumed = make([])
    resumed.train()
    assert resumed.resumed_from is not None and resumed.step == STEPS
    return resumed


def test_both_networks_are_those_of_the_original_loop(tmp_path: Path) -> None:
    """dcgan of pytorch/examples, by composition and by subclass, in one go and after a stop."""

    def make(folder: str, hooks: list[BaseHook]) -> Loop:
        config = composed([*DIGITS, *PARTS, f"paths.outputs={tmp_path}"])
        return build_trainer(run_of(config), RunFolder(tmp_path / folder), hooks)

    straight = make("straight", [])
    model: Any = copy.deepcopy(straight.model)
    stream = iter(make("stream", []).data_loader)
    batches = [next(stream) for _ in range(STEPS)]
    rng, start = rng_state(), copy.deepcopy(model)
    original(model, batches, rng)
    assert not torch.equal(model.generator[0].weight, start.generator[0].weight)

    def subclassed(hooks: list[BaseHook]) -> Loop:
        hooks = [*hooks, CheckpointingHook(100)]
        return Gan(batches, copy.deepcopy(start), hooks, workspace=tmp_path / "subclass")

    restore_rng(rng)
    straight.train()
    ends = {"straight": straight}
    ends["resumed"] = finish(lambda hooks: make("resumed", hooks), rng)
    ends["subclass"] = finish(subclassed, rng)
    state = model.state_dict() | {"steps": torch.tensor(STEPS)}
    for name, trainer in ends.items():
        found = trainer.unwrapped_model.state_dict()
        assert found.keys() == state.keys()
        wrong = [key for key in state if not torch.equal(found[key], state[key])]
        assert not wrong, (name, wrong)
    first, *others = (trainer.state_dict() for trainer in ends.values())
    moments = first["training_state"]["optimizer"]["state"]
    assert len(moments) == len(list(model.parameters()))
    for other in others:
        for name, values in other["training_state"]["optimizer"]["state"].items():
            assert all(torch.equal(moments[name][key], values[key]) for key in values), name


class Pair(BaseTrainer):
    """Two numbers, the second of which learns from the first; `bad` spoils a loss, `without` has
    none."""

    def __init__(self, hooks: Any = (), bad: Any = (), without: Any = (), **settings: Any):
        super().__init__(**{"max_steps": 4, "device": "cpu", **settings})
        self.given, self.bad, self.without = list(hooks), bad, without
        self.seen: list[Any] = []

    def build_data_loader(self) -> Any:
        return torch.arange(1.0, 9.0).split(1)

    def build_model(self) -> nn.Module:
        return nn.ParameterDict({"a": torch.ones(2), "b": torch.ones(3)})

    def build_optimizer(self) -> Any:
        return {name: torch.optim.SGD([p], lr=0.1) for name, p in self.model.items()}  # type: ignore[operator]

    def build_lr_scheduler(self) -> Any:
        return {
            "b": torch.optim.lr_scheduler.LambdaLR(self.optimizer.parts["b"], lambda n: 0.5**n)  # type: ignore[attr-defined]
        }

    def build_hooks(self) -> Any:
        return self.given

    def forward(self, input: torch.Tensor, optimizer: str | None = None) -> Any:
        self.seen.append((self.step, optimizer, float(input)))
        if (self.step, optimizer) in self.without or optimizer in self.without:
            return None, {}
        parameters: Any = self.model
        loss = (parameters["a"].sum() + parameters["b"].sum()) * input.sum()
        return loss * (float("nan") if (self.step, optimizer) in self.bad else 1.0), {}


def test_each_part_has_its_own_check_clipping_schedule_and_log() -> None:
    recorder = Recorder()
    from launcher import LoggingHook

    hooks = [GradientsHook(1), LoggingHook(1), recorder]
    trainer = Pair(hooks, bad=[(2, "a")], without=[(3, "b")], grad_clip=1.0)
    trainer.train()
    weights: Any = trainer.model.state_dict()
    a, b = weights["a"], weights["b"]
    # Gradients are clipped to a norm of 1 each: 3 updates of a, and 3 of b at falling rates.
    assert torch.allclose(a, torch.ones(2) - 3 * 0.1 / 2**0.5, atol=1e-5)
    assert torch.allclose(b, torch.ones(3) - (0.1 + 0.05 + 0.025) / 3**0.5, atol=1e-5)
    assert (trainer.state.skipped_steps, trainer.state.skipped_in_row) == (1, 0)
    lines: dict[int, dict[str, Any]] = {}
    for step, records in recorder.records:
        lines.setdefault(step, {}).update(records)
    second, third, fourth = (lines[step]["train"] for step in (2, 3, 4))
    assert [line["lr"]["b"] for line in (second, third, fourth)] == [0.05, 0.025, 0.025]
    assert second["grad_norm/b"] == pytest.approx(2 * 3**0.5)
    assert second["grad_norm/a"] != second["grad_norm/a"]
    assert "loss/b" not in third and third["loss"] == third["loss/a"]
    assert fourth["loss"] == pytest.approx(fourth["loss/a"] + fourth["loss/b"])
    assert set(lines[4]["gradients"]) == {"a", "b"}
    assert trainer.seen[:4] == [(1, "a", 1.0), (1, "b", 1.0), (2, "a", 2.0), (2, "b", 2.0)]


def test_each_part_takes_its_turn_over_all_micro_batches_of_a_step() -> None:
    trainer = Pair(gradient_accumulation_steps=2, max_steps=1)
    trainer.train()
    assert [(name, value) for _, name, value in trainer.seen] == [
        ("a", 1.0), ("a", 2.0), ("b", 1.0), ("b", 2.0),
    ]  # fmt: skip
    weights: Any = trainer.model
    assert torch.allclose(weights["a"], torch.ones(2) - 0.1 * 1.5)


class Together(Pair):
    """Misuses, by name."""

    def __init__(self, misuse: str, **settings: Any):
        super().__init__(**settings)
        self.misuse = misuse

    def build_strategy(self) -> Strategy:
        strategy: Any = super().build_strategy()
        if self.misuse == "a strategy":
            strategy.supports_parts, strategy.name = False, "single"
        return strategy

    def build_optimizer(self) -> Any:
        model: Any = self.model
        one: Any = {
            "no optimizer": "Adam",
            "a closure": torch.optim.LBFGS([model["a"]]),
            "shared": torch.optim.SGD(model.parameters(), lr=0.1),
        }
        return (
            {**super().build_optimizer(), "b": one[self.misuse]}
            if self.misuse in one
            else (super().build_optimizer())
        )

    def build_lr_scheduler(self) -> Any:
        if self.misuse == "one schedule":
            return torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: 1.0)
        if self.misuse == "another name":
            part = self.optimizer.parts["b"]  # type: ignore[attr-defined]
            return {"c": torch.optim.lr_scheduler.LambdaLR(part, lambda n: 1.0)}
        if self.misuse == "a metric":
            part = self.optimizer.parts["b"]  # type: ignore[attr-defined]
            return {"b": torch.optim.lr_scheduler.ReduceLROnPlateau(part)}
        return None


@pytest.mark.parametrize(
    ("misuse", "settings", "message"),
    [
        ("no optimizer", {}, "optimizer.parts.b: should be a torch.optim.Optimizer; it is a str."),
        ("a closure", {}, "optimizer.parts.b: the step of LBFGS needs a closure"),
        ("shared", {}, "optimizer.parts.b: has a parameter of shape [2] that a has too"),
        ("one schedule", {}, "build_lr_scheduler: there are several optimizers (a, b); return a"),
        ("another name", {}, "build_lr_scheduler: c is not one of the optimizers (a, b)."),
        ("a metric", {}, "scheduler.parts.b: ReduceLROnPlateau follows a metric"),
        ("retries", {"max_non_finite_grad_retries": 1}, "max_non_finite_grad_retries=1: a step of"),
        ("a strategy", {}, "strategy=single: does not support several optimizers (a, b); use one"),
        ("a hook", {"hooks": [NanReportHook()]}, "NanReportHook: does not support several"),
    ],
)
def test_a_program_with_what_several_optimizers_do_not_support_is_rejected(
    misuse: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as rejected:
        Together(misuse, **settings).build()
    assert str(rejected.value).startswith(message)


def test_a_forward_without_the_name_is_rejected() -> None:
    class Nameless(Pair):
        def forward(self, input: Any) -> Any:  # type: ignore[override]
            return super().forward(input)

    with pytest.raises(ConfigError, match=r"^Nameless\.forward: does not take the name of an"):
        Nameless().build()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"without": ["a", "b"]}, "Step 1: forward returned no loss for any optimizer."),
        (
            {"without": [(1, "a")], "gradient_accumulation_steps": 2},
            "Step 1: forward returned no loss",
        ),
    ],
)
def test_a_step_needs_a_loss(settings: dict[str, Any], message: str) -> None:
    class Every(Pair):
        def forward(self, input: torch.Tensor, optimizer: str | None = None) -> Any:
            output = super().forward(input, optimizer)
            return output if settings["without"] == ["a", "b"] or float(input) > 1 else (None, {})

    with pytest.raises(TrainingError, match="forward returned"):
        Every(**settings).train()


REJECTED = {
    "trainer.lanes=2": "trainer.lanes=2: does not support several optimizers",
    "trainer.max_non_finite_grad_retries=1": "trainer.max_non_finite_grad_retries=1: does not",
    "strategy=deepspeed": "strategy=DeepSpeedStrategy: does not support several optimizers",
    "job=lr_find": "job=LRFindJob: does not support several optimizers",
    "hooks=[checkpointing,skip_spikes]": "hooks.skip_spikes: does not support several optimizers",
    "hooks=[checkpointing,nan_report]": "hooks.nan_report: does not support several optimizers",
    "hooks=[checkpointing,throughput]": "hooks.throughput.flops=true: does not support several",
    "optimizer.parts.generator=3": "optimizer.parts.generator: has no _target_",
    "optimizer.parts=null": "optimizer.parts",
    "optimizer.parts.generator.lrr=1": "optimizer.parts.generator.lrr=1: Adam takes no lrr",
}


@pytest.mark.parametrize("override", REJECTED)
def test_a_command_with_what_several_optimizers_do_not_support_is_rejected(override: str) -> None:
    from support.composition import validate

    words = [word for word in DIGITS if not override.startswith(word.partition("=")[0] + "=")]
    with pytest.raises(ConfigError) as rejected:
        validate(composed([*words, *PARTS, f"++{override}" if "parts." in override else override]))
    assert any(message.startswith(REJECTED[override]) for message in rejected.value.messages)


BUILT = {
    "optimizer.turns=[generator]": "optimizer.turns=[generator]: should have each of",
    "optimizer.modules={generator:[decoder]}": "optimizer.modules.generator: DCGAN has no module",
    "optimizer.modules={encoder:[generator]}": "optimizer.modules.encoder: is not one of",
    "optimizer.max_grad_norm={genrator:1}": "optimizer.max_grad_norm.genrator: is not one of"
    " optimizer.parts; did you mean generator?",
    "optimizer.modules={generator:[generator.0]}": "optimizer.parts: the parameter generator.1.w",
    "scheduler.parts={critic:{_target_:launcher.optim.schedulers.constant}}": "scheduler.parts",
}


@pytest.mark.parametrize("override", BUILT)
def test_parts_that_do_not_fit_the_model_are_rejected(override: str, tmp_path: Path) -> None:
    words = [word for word in DIGITS if word != "~scheduler" or "scheduler" not in override]
    scheduler = ["scheduler=parts"] if "scheduler" in override else []
    config = composed([*words, *PARTS, *scheduler, override, f"paths.outputs={tmp_path}"])
    with pytest.raises(ConfigError) as rejected:
        build_trainer(run_of(config), RunFolder(tmp_path))
    assert str(rejected.value).startswith(BUILT[override])


def test_parts_have_schedules_and_limits_of_their_own(tmp_path: Path) -> None:
    overrides = [
        *(word for word in DIGITS if word != "~scheduler"),
        *PARTS,
        "optimizer.parts.generator._target_=launcher.optim.optimizers.muon",
        "~optimizer.parts.generator.betas",
        "optimizer.max_grad_norm={generator:0.5}",
        "scheduler=parts",
        "scheduler.parts={generator:{_target_:launcher.optim.schedulers.linear,"
        "max_steps:${trainer.max_steps},warmup_steps:0}}",
        "trainer.max_steps=2",
        f"paths.outputs={tmp_path}",
    ]
    trainer = build_trainer(run_of(overrides), RunFolder(tmp_path))
    names = [group["name"] for group in trainer.optimizer.param_groups]
    assert names[0] == "discriminator" and all(name.startswith("generator/") for name in names[1:])
    trainer.train()
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    assert rates[0] == 0.0002 and set(rates[1:]) == {0.0}
    assert not any(copy.copy(trainer.optimizer).step() for _ in range(1))
