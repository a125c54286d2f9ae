"""A model that steps its own optimizers trains as the same code in a bare loop, and resumes."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.errors import ConfigError, TrainingError
from launcher.hooks.base import BaseHook
from launcher.jobs.lr_find import find_lr
from launcher.optim.own_optimizers import OwnOptimizers
from launcher.process.object_marks import Looks, Restored
from launcher.proof.trace import TraceHook
from launcher.train.build import build_trainer
from launcher.train.composed import Trainer
from support.composition import mistakes, run_of
from support.own_steps import Pair

OWN = [
    "~model", "+model._target_=support.own_steps.Pair", "data=digits", "data.batch_size=12",
    "optimizer=none", "scheduler=none", "device=cpu", "trainer.max_steps=6",
    "hooks=[checkpointing]", "hooks.checkpointing.best_metric=null",
]  # fmt: skip


class Batches(BaseHook):
    def __init__(self) -> None:
        self.batches: list[Any] = []

    def on_batch(self, trainer: Any, batch: Any) -> None:
        self.batches.append(batch)


def built(folder: Path, *words: str, hook: BaseHook | None = None) -> Trainer:
    run = run_of([*OWN, f"paths.outputs={folder}", *words])
    return build_trainer(run, run.folder, [] if hook is None else [hook])


def state(trainer: Trainer) -> str:
    model: Any = trainer.unwrapped_model
    parts = [model, *(getattr(model, name) for name in Pair.owns_optimizers)]
    return str([part.state_dict() for part in parts])


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    torch.set_printoptions(precision=12, threshold=10**6)
    words = ["hooks=[checkpointing,logging]", "hooks.logging.interval=1"]
    whole = built(tmp_path / "whole", *words)
    whole.train()
    built(tmp_path / "parts", *words, "trainer.pause_at=3").train()
    parts = built(tmp_path / "parts", *words)
    parts.train()
    assert parts.resumed_from is not None and state(parts) == state(whole)
    lines = (whole.workspace / "metrics.jsonl").read_text().splitlines()
    rates = [json.loads(line)["train/lr/second_optimizer"] for line in lines]
    assert rates == [0.1, 0.05, 0.05, 0.025, 0.025, 0.0125]
    assert json.loads(lines[0])["train/lr/first_optimizer"] == 0.01


@pytest.mark.parametrize("pause", [2, 3, 4])
def test_gradients_that_are_summed_over_steps_are_resumed(pause, tmp_path):
    def trained(folder: str, *words: str) -> str:
        trainer = built(tmp_path / folder, "model._target_=support.own_steps.Summing", *words)
        trainer.train()
        return state(trainer)

    whole = trained("whole")
    assert trained("parts", f"trainer.pause_at={pause}") != whole
    assert trained("parts") == whole


class Counting(torch.optim.lr_scheduler.LambdaLR):
    def __init__(self, optimizer: torch.optim.Optimizer):
        self.calls = 0
        super().__init__(optimizer, lambda step: 1 / (1 + step))

    def get_lr(self) -> list[float | torch.Tensor]:
        self.calls += 1
        return super().get_lr()


SCHEDULES = {
    "StepLR": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1),
    "SequentialLR": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer, [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)] * 2, [2]
    ),
    "a subclass": Counting,
}


@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES)
def test_what_its_optimizers_store_is_not_reported_as_lost(make):
    model = Pair()
    model.schedule = make(model.second_optimizer)
    model.epochs = 0
    own, looks = OwnOptimizers(model), Looks()
    lost = []
    for _ in range(3):
        restored = Restored()
        own.add_restored(restored)
        lost += looks.look({"model": model}, restored)
        model.second_optimizer.step()
        model.schedule.step()
        model.epochs += 1
    assert lost == ["model.epochs"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_trains_as_a_bare_loop(precision, tmp_path):
    """Autocast's cache would give the second forward pass the weights of before the update."""
    hook = Batches()
    trainer = built(tmp_path, f"precision={precision}", hook=hook)
    bare: Any = deepcopy(trainer.unwrapped_model)
    trainer.train()
    for batch in hook.batches:
        for optimizer in (bare.second_optimizer, bare.first_optimizer):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loss = bare.losses(batch)
            bare.zero_grad()
            loss.backward()
            optimizer.step()
        bare.schedule.step()
    weights = trainer.unwrapped_model.state_dict()
    assert len(hook.batches) == 6
    assert all(torch.equal(weights[name], value) for name, value in bare.state_dict().items())


def test_a_skipped_step_takes_the_next_batch_and_is_counted(tmp_path):
    hook, logged = Batches(), ["hooks=[checkpointing,logging]", "hooks.logging.interval=1"]
    trainer = built(tmp_path, "+model.missing=2", *logged, hook=hook)
    trainer.train()
    assert (trainer.step, len(hook.batches)) == (6, 7)
    lines = map(json.loads, (trainer.workspace / "metrics.jsonl").read_text().splitlines())
    counts = [line["train/non_finite_grad_retry_count"] for line in lines]
    assert counts == [0, 1, 0, 0, 0, 0]
    with pytest.raises(TrainingError, match="no loss 1 times in a row"):
        built(tmp_path, "+model.missing=2", "trainer.max_consecutive_none_losses=0").train()


WRONG = {
    "optimizer=adamw": "optimizer._target_",
    "scheduler=cosine": "scheduler._target_",
    "strategy=ddp": "strategy._target_",
    "dispatch.nproc=2": "strategy",
    "precision=fp16": "precision.name",
    "trainer.compile=true": "trainer.compile",
    "trainer.lanes=4": "trainer.lanes",
    "trainer.micro_batch_size=6": "trainer.micro_batch_size",
    "trainer.micro_batch_size=auto": "trainer.micro_batch_size",
    "trainer.activation_checkpointing=full": "trainer.activation_checkpointing",
    "trainer.max_non_finite_grad_retries=1": "trainer.max_non_finite_grad_retries",
    "trainer.max_grad_norm=0.5": "trainer.max_grad_norm",
}


@pytest.mark.parametrize("word", WRONG)
def test_what_it_cannot_honour_is_one_message(word):
    (message,) = mistakes([*OWN, word])
    assert message.startswith(f"{WRONG[word]}=") and "use " in message, message


@pytest.mark.parametrize("word", ["trainer.max_grad_norm=null", "precision=tf32", "strategy=none"])
def test_what_requests_nothing_is_allowed(word):
    assert not mistakes([*OWN, word])


def test_another_model_has_no_optimizers_of_its_own():
    (message,) = mistakes(["model=mlp", "data=digits", "optimizer=none"])
    assert message.startswith("optimizer=none: the model's class does not declare the optimizers")
    assert 'owns_optimizers = ("optimizer",)' in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+model.fault=graph"], r"return loss\.detach\(\)"),
        (["+model.fault=replaced"], "has a parameter that is not the model's"),
        (["+model.fault=absent"], r"names 'schedule', which should be an optimizer or a schedule"),
        (["model._target_=support.own_steps.Scheduled"], "none of them is a torch.optim.Optimizer"),
        (["hooks=[checkpointing,skip_spikes]"], r"leave out hooks\.skip_spikes"),
        (["hooks=[checkpointing,nan_report]"], r"^hooks\.nan_report: .* leave it out"),
    ],
)
def test_a_model_or_hook_that_does_not_fit_is_rejected_before_a_step(words, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        built(tmp_path, *words).train()


class Gradients(BaseHook):
    def on_before_optimizer_step(self, trainer: Any) -> None:
        raise AssertionError("there is no such moment")


def test_a_trace_leaves_its_gradients_out_and_another_hook_cannot(tmp_path):
    built(tmp_path, hook=TraceHook(str(tmp_path))).train()
    lines = [json.loads(line) for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == 6 and all("weights" in line and "gradients" not in line for line in steps)
    with pytest.raises(ConfigError, match=r"leave out .* hooks with on_before_optimizer_step"):
        built(tmp_path / "other", hook=Gradients()).train()


def test_it_has_no_common_rate_to_find(tmp_path):
    with pytest.raises(ConfigError, match=r"^job=lr_find: the model steps its own optimizers"):
        find_lr(built(tmp_path))


def test_the_state_of_another_class_is_rejected():
    one, other = Pair(), Pair()
    other.second_optimizer = torch.optim.Adam(other.second.parameters())
    with pytest.raises(TrainingError, match=r"was written with .*SGD"):
        OwnOptimizers(other).load_state_dict(OwnOptimizers(one).state_dict())
