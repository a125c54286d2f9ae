"""State that hooks save and get back: trainloop's EmaHook, two hooks of one class, hooks that come
and go."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from launcher import BaseHook, CheckpointingHook, LoggingHook
from launcher.errors import TrainingError
from support.toy import Toy


class Training(Toy):
    """Another model in each attempt, on equal batches: their position is not restored."""

    def __init__(
        self, workspace: Path, hooks: Sequence[BaseHook], max_steps: int = 2, **settings: Any
    ):
        super().__init__(hooks, max_steps, workspace, [torch.ones(4, 2)], **settings)

    def build_model(self) -> nn.Module:
        torch.manual_seed(len(list(self.workspace.rglob("manifest.json"))))  # type: ignore[union-attr]
        return nn.Linear(2, 1)


class EmaHook(BaseHook):
    """The hook of trainloop's documentation."""

    def __init__(self, decay: float = 0.5):
        self.decay = decay

    def on_before_train(self, trainer: Any) -> None:
        self.ema_model = AveragedModel(
            trainer.unwrapped_model, multi_avg_fn=get_ema_multi_avg_fn(self.decay)
        )

    def on_after_step(self, trainer: Any) -> None:
        self.ema_model.update_parameters(trainer.unwrapped_model)

    def on_load_state_dict(self, trainer: Any, state_dict: dict[str, Any]) -> None:
        set_model_state_dict(self.ema_model, state_dict["ema_model"])

    def on_state_dict(self, trainer: Any, state_dict: dict[str, Any]) -> None:
        state_dict["ema_model"] = get_model_state_dict(self.ema_model)


@pytest.mark.parametrize("ema_first", [True, False])
def test_trainloops_ema_resumes_as_if_uninterrupted(tmp_path, ema_first):
    def train(folder: Path, max_steps: int) -> dict[str, Any]:
        ema = EmaHook()
        hooks = [ema, CheckpointingHook(9)] if ema_first else [CheckpointingHook(9), ema]
        Training(folder, hooks, max_steps).train()
        return dict(ema.ema_model.state_dict())

    train(tmp_path / "two", 2)
    resumed, straight = train(tmp_path / "two", 4), train(tmp_path / "one", 4)
    assert resumed["n_averaged"] == 4
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)


class Means(LoggingHook):
    """A logging hook whose reports are kept."""

    def __init__(self, interval: int):
        super().__init__(interval)
        self.losses: list[float] = []

    def report_means(self, trainer: Any, stats: Any) -> None:
        self.losses.append(stats.numbers["loss"])


def test_hooks_of_one_class_keep_their_own_state(tmp_path):
    def train(folder: Path, *max_steps: int) -> list[list[float]]:
        losses: list[list[float]] = [[], []]
        for steps in max_steps:
            hooks = [Means(3), Means(4)]
            Training(folder, [*hooks, CheckpointingHook(9)], steps).train()
            losses = [old + new.losses for old, new in zip(losses, hooks, strict=True)]
        return losses

    straight, resumed = train(tmp_path / "one", 12), train(tmp_path / "two", 2, 12)
    # at step 2 the first attempt reported its last part-interval, so only what follows can agree
    assert [losses[-2:] for losses in resumed] == [losses[-2:] for losses in straight]


class Seen(BaseHook):
    """Takes part in both: what it saw is kept."""

    def __init__(self, value: int = 0):
        self.value, self.keys = value, set()  # type: ignore[var-annotated]

    def on_state_dict(self, trainer: Any, state_dict: dict[str, Any]) -> None:
        assert torch.equal(state_dict["model"]["weight"], trainer.model.weight)
        state_dict["value"] = self.value
        state_dict["training_state"]["extra"] = 7

    def on_load_state_dict(self, trainer: Any, state_dict: dict[str, Any]) -> None:
        self.keys, self.value = set(state_dict), state_dict["value"]
        assert torch.equal(state_dict["model"]["weight"], trainer.model.weight)
        assert state_dict["training_state"]["step"] == trainer.step
        assert state_dict["training_state"]["extra"] == 7


def test_hooks_see_the_model_and_the_training_state(tmp_path):
    Training(tmp_path, [EmaHook(), Seen(1), Seen(2), CheckpointingHook(9)], 2).train()
    hooks = [Seen(), EmaHook(), Seen(), Seen(), CheckpointingHook(9)]
    Training(tmp_path, hooks, 2).train()
    assert [hook.value for hook in hooks if isinstance(hook, Seen)] == [1, 2, 0], "the third is new"
    assert hooks[0].keys == {"model", "training_state", "value", "ema_model", "checkpointing"}  # type: ignore[attr-defined]


def test_state_in_memory(tmp_path):
    first = Training(tmp_path, [Seen(1), Seen(2)], 2)
    first.train()
    state = first.state_dict()
    assert state["value"] == 1 and {"model", "training_state"} < set(state)
    second = Training(tmp_path, [Seen(), Seen()], 2)
    second.build()
    second.load_state_dict(state)
    assert [hook.value for hook in second.hooks] == [1, 2]  # type: ignore[attr-defined]
    assert second.step == 2 and torch.equal(second.model.weight, first.model.weight)
    moments, expected = (
        [state["exp_avg"].tolist() for state in trainer.optimizer.state.values()]
        for trainer in (second, first)
    )
    assert moments == expected
    del state["hooks"]  # as trainloop writes it
    second.load_state_dict(state)
    assert [hook.value for hook in second.hooks] == [1, 1]  # type: ignore[attr-defined]


def test_a_hook_cannot_replace_the_model_of_a_checkpoint(tmp_path):
    class Replaces(BaseHook):
        def on_state_dict(self, trainer: Any, state_dict: dict[str, Any]) -> None:
            state_dict["model"] = {}

    with pytest.raises(TrainingError, match=r"Replaces\.on_state_dict replaced 'model'"):
        Training(tmp_path, [Replaces(), CheckpointingHook(9)], 1).train()


@pytest.mark.parametrize("ignored", [True, False])
def test_frozen_parameters_follow_the_state_dict_options(tmp_path, ignored):
    class Frozen(Training):
        def build_model(self) -> nn.Module:
            model = super().build_model()
            model.bias.requires_grad_(False)  # type: ignore[union-attr]
            return model

        def build_optimizer(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW([self.model.weight], lr=0.1)  # type: ignore[list-item]

    options = StateDictOptions(ignore_frozen_params=ignored)
    trainers = [
        Frozen(tmp_path, [CheckpointingHook(9)], 1, state_dict_options=options) for _ in range(2)
    ]
    for trainer in trainers:
        trainer.train()
    weights, biases = ([getattr(t.model, name) for t in trainers] for name in ("weight", "bias"))
    assert torch.equal(*weights)
    assert torch.equal(*biases) is not ignored, "an ignored one is what build_model made"
