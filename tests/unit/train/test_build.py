"""A trainer from a configuration."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from launcher import FunctionHook
from launcher.config.settings import TrainerSettings
from launcher.data.digits import DigitsData
from launcher.errors import ConfigError
from launcher.hooks.metric_schedule import MetricScheduleHook
from launcher.optim.precision import Precision
from launcher.rundir.folder import RunFolder
from launcher.strategies.ddp import DdpStrategy
from launcher.train.build import (
    build_model,
    build_optimizer,
    build_scheduler,
    build_trainer,
    compile_options,
    in_steps,
    step_plan,
)
from launcher.train.composed import Trainer, captures_graphs
from support.composition import run_of
from support.runner import metrics_of


def build(folder: Path, *overrides: str, **options: Any) -> Trainer:
    """Build the trainer of a small run."""
    words = ["model=mlp", "data=synthetic", "trainer.max_steps=1", "device=cpu"]
    config = run_of([*words, *overrides, f"paths.outputs={folder}"])
    return build_trainer(config, RunFolder(folder), **options)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (
            "hooks=[default,early_stopping]",
            "hooks.early_stopping: needs a validation set (metric=val/loss)",
        ),
        ("scheduler=plateau", "scheduler: needs a validation set (metric=val/loss)"),
        ("scheduler=plateau scheduler.metric=train/loss", None),
    ],
)
def test_option_that_follows_validation_needs_validation_data(tmp_path, words, key):
    overrides = ["data.num_val_samples=0", *words.split()]
    if key is None:
        build(tmp_path, *overrides)
        return
    with pytest.raises(ConfigError) as error:
        build(tmp_path, *overrides)
    assert error.value.messages == [
        f"{key}, and the data have none; set data.num_val_samples, or leave it out."
    ]
    build(tmp_path, *overrides, to_train=False)
    build(tmp_path, *overrides, "data.num_val_samples=8")


class OwnLoader(DigitsData):
    """Ignores the settings of a loader."""

    def train_loader(self, **options):
        return torch.utils.data.DataLoader(self.train_dataset(), self.batch_size)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (f"data._target_={__name__}.OwnLoader", "OwnLoader makes a loader of its own"),
        ("data.skip=[[2,1]]", "should be pairs of a first and a last step"),
    ],
)
def test_steps_that_cannot_be_skipped_are_rejected(tmp_path, words, text):
    with pytest.raises(ConfigError, match=rf"^data\.skip=\[\[\d, \d\]\]: .*{text}"):
        build(tmp_path, "data=digits", "data.skip=[[2,3]]", words)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("mode", [None, "min", "max"])
def test_a_schedule_of_an_unknown_metric_needs_a_mode(tmp_path, mode):
    words = ["data=digits", "scheduler=plateau", "scheduler.metric=val/x"]
    if mode is None:
        with pytest.raises(ConfigError, match=r"set scheduler\.mode=min or scheduler\.mode=max"):
            build(tmp_path, *words)
        return
    trainer = build(tmp_path, *words, f"+scheduler.mode={mode}")
    (hook,) = [hook for hook in trainer.hooks if isinstance(hook, MetricScheduleHook)]
    assert hook.best.mode == mode


@given(st.integers(1, 16), st.integers(1, 64), st.one_of(st.none(), st.integers(1, 100)))
def test_the_batch_is_divided(ranks, share, most):
    plan = step_plan(TrainerSettings(1, micro_batch_size=most), ranks * share, ranks, Precision())
    assert plan.micro_batch_size is not None
    assert plan.micro_batch_size * plan.grad_accum_steps == share
    fitting = [
        size for size in range(1, share + 1) if share % size == 0 and size <= (most or share)
    ]
    assert plan.micro_batch_size == max(fitting)


EPOCHS = {
    "warmup_steps": "1epoch",
    "milestones": ["0.5epoch", "2 epochs", 7],
    "max_steps": 9,
    "decay": "linear",
}


@pytest.mark.parametrize(
    ("size", "expected"), [(100, (4, [2, 7, 7])), (96, (3, [2, 6, 7])), (1, (1, [1, 1, 7]))]
)
def test_epochs_of_a_schedule_are_steps_rounded_up(size, expected):
    schedule = in_steps(EPOCHS, range(size), 32)
    assert schedule == {**EPOCHS, "warmup_steps": expected[0], "milestones": expected[1]}


def test_epochs_of_a_schedule_need_data_with_a_length():
    with pytest.raises(
        ConfigError, match=r"^scheduler\.warmup_steps: the training data have no length; set it in"
    ):
        in_steps(EPOCHS, iter([]), 32)
    assert in_steps(None, iter([]), 32) is None


def test_a_batch_that_does_not_divide_is_rejected():
    with pytest.raises(
        ConfigError, match=r"data\.batch_size=12: is not divisible by 5 ranks; use 10 or 15"
    ):
        step_plan(TrainerSettings(1), 12, 5, Precision())


def test_a_whole_graph_is_rejected_where_the_strategy_breaks_it():
    with pytest.raises(ConfigError, match="breaks the graph"):
        compile_options({"fullgraph": True}, DdpStrategy())


@pytest.mark.slow
@pytest.mark.parametrize(("size", "batch", "steps"), [(7, 3, 8), (3, 7, 4)])
def test_epochs_of_a_composed_run_are_those_of_its_samples(tmp_path, size, batch, steps):
    def train(max_steps: int, folder: str, pause_at: int | None = None) -> list[int]:
        overrides = [
            "model=supervised", "model.loss=mse", "model.module._target_=torch.nn.Linear",
            "+model.module.in_features=1", "+model.module.out_features=1",
            "data=custom", "data.dataset._target_=support.modules.Points",
            f"+data.dataset.size={size}",
            f"data.batch_size={batch}", "scheduler=constant", "device=cpu",
            f"paths.outputs={tmp_path}",
            f"trainer.pause_at={pause_at or 'null'}", f"trainer.max_steps={max_steps}",
            "hooks.logging.interval=1",
        ]  # fmt: skip
        seen: list[int] = []
        hook = FunctionHook(on_after_step=lambda trainer: seen.append(trainer.state.epoch))
        trainer = build_trainer(run_of(overrides), RunFolder(tmp_path / folder), [hook])
        trainer.train()
        assert trainer.state.num_epochs == pytest.approx(max_steps * batch / size)
        return seen

    whole = train(steps, "whole")
    assert whole == [(step * batch - 1) // size for step in range(1, steps + 1)]
    assert train(steps, "parts", pause_at=2) + train(steps, "parts") == whole
    lines = metrics_of(tmp_path / "whole")
    assert [line["epoch"] for line in lines if line["step"]] == whole


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mode": "max-autotune-no-cudagraphs"}, False),
        ({"mode": "reduce-overhead"}, True),
        ({"backend": "cudagraphs"}, True),
    ],
)
def test_options_that_capture_cuda_graphs(options, expected):
    assert captures_graphs(options, torch.device("cuda")) is expected
    assert not captures_graphs(options, torch.device("cpu"))


def test_cuda_graphs_accumulate_nothing(tmp_path):
    """The device is only named here, since this is rejected before the model is compiled."""
    strategy = build(tmp_path, "data.batch_size=8", "trainer.micro_batch_size=2").strategy
    strategy.device = torch.device("cuda")
    with pytest.raises(ConfigError, match="each of the step's 4 micro-batches overwrites"):
        compile_options({"mode": "reduce-overhead"}, strategy)
    assert compile_options({"mode": "max-autotune-no-cudagraphs"}, strategy)


def test_each_shape_has_a_graph_of_its_own(tmp_path):
    """An evaluation may have compiled its shorter last batch before the first step, and not before
    the first step of a resume, which must compute with the same graph."""
    trainer, graphs = build(tmp_path), []

    def backend(module: Any, inputs: list[Any]) -> Any:
        graphs.append(any(isinstance(size, torch.SymInt) for size in inputs))
        return module

    trainer.compile(compile_options(True, trainer.strategy) | {"backend": backend})
    values, target = next(iter(trainer.data_loader))
    for size in (4, 2, 3):
        trainer.forward((values[:size], target[:size]))
    torch.compiler.reset()
    assert graphs == [False] * 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("options", ["{mode:reduce-overhead}", "{backend:cudagraphs}"])
def test_cuda_graphs_change_no_number(options, tmp_path):
    """Losses are logged every four steps, and must not be overwritten before."""
    plain = "{backend:aot_eager}" if "backend" in options else "true"
    written = []
    for number, setting in enumerate((plain, options)):
        words = (
            "model=gpt data.batch_size=8 data.seq_len=32 trainer.max_steps=12 device=cuda"
            " trainer.deterministic=true hooks.logging.interval=4"
            f" hooks.evaluation.max_samples=16 trainer.compile={setting}"
        )
        folder = RunFolder(tmp_path / str(number)).create().path
        trainer = build(folder, *words.split())
        trainer.train()
        written.append([weight.detach().cpu() for weight in trainer.model.parameters()])
        torch.compiler.reset()
    assert all(torch.equal(one, other) for one, other in zip(*written, strict=True))


@pytest.mark.parametrize(
    ("overrides", "sizes"),
    [
        ([], [4, 4, 2]),
        (["data.val_batch_size=3"], [3, 3, 3, 1]),
        (["data.val_batch_size=6", "trainer.lanes=2"], [3, 3, 3, 1]),
    ],
)
def test_evaluation_has_a_batch_size_of_its_own(overrides, sizes, tmp_path):
    words = ["model=gpt", "data.seq_len=4", "data.batch_size=4", "data.num_val_samples=10"]
    trainer = build(tmp_path, *words, *overrides)
    assert trainer.context.val_loader is not None
    loader = trainer.context.val_loader()
    assert loader is not None
    assert [len(batch[0]) for batch in loader] == sizes


@pytest.mark.parametrize(
    ("make", "target", "options", "message"),
    [
        (build_optimizer, "torch.optim.LBFGS", {}, "the step of LBFGS needs a closure, which"),
        (build_optimizer, "torch.optim.Optimizer", {}, r"'defaults'; it is .* \(parameters\)\.$"),
        (build_optimizer, "torch.optim.Optimizer", {"defaults": {}}, r"Optimizer has no step\(\)"),
        (build_optimizer, "torch.optim.AdamW", {"lr": -1.0}, r"AdamW: Invalid learning rate: -1"),
        (build_optimizer, "builtins.repr", {}, "should make a torch.optim.Optimizer; it made a st"),
        (build_scheduler, "torch.optim.lr_scheduler.StepLR", {}, r"'step_size'; .* \(optimizer\)"),
        (build_scheduler, "builtins.repr", {}, "should make a torch.*LRScheduler; it made a str"),
        (build_model, "torch.nn.ModuleList", {}, r"the class has no forward\(\); add it\.$"),
        (build_model, "torch.nn.CosineSimilarity", {}, r"\.forward: missing .*'x2'; .* \(batch\)"),
    ],
)
def test_a_class_without_what_training_calls_is_rejected(make, target, options, message):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    part = {build_model: (), build_optimizer: (model,), build_scheduler: (optimizer,)}[make]
    with pytest.raises(ConfigError, match=message):
        make({"_target_": target, **options}, *part)
