"""Which methods of hooks are called."""

from pathlib import Path
from typing import Any

import pytest

from launcher import BaseHook, BaseTrainer
from launcher.errors import ConfigError
from launcher.hooks.base import AT_LAST
from launcher.train.events import Schedule
from support.toy import Toy


def test_log_reaches_every_form_of_a_hook(tmp_path: Path) -> None:
    calls: list[tuple[str, Any, bool]] = []

    class Log(BaseHook):
        def on_log(self, trainer: Any, records: dict[str, Any], dry_run: bool = False) -> None:
            calls.append(("on_log", records, dry_run))

    class Scalars(Log):
        def on_log_scalars(self, trainer: Any, records: dict[str, Any], dry_run: bool = False) -> None:
            calls.append(("on_log_scalars", records, dry_run))

    class Keyword(BaseHook):
        def on_log(self, trainer: Any, records: dict[str, Any], *, dry_run: bool = False) -> None:
            calls.append(("keyword", records, dry_run))

        def on_log_images(self, trainer: Any, records: dict[str, Any], *, dry_run: bool = False) -> None:
            calls.append(("images", records, dry_run))

    instance = BaseHook()
    instance.on_log = lambda trainer, records, dry_run: calls.append(("instance", records, dry_run))  # type: ignore[method-assign]
    trainer = Toy([Log(), Scalars(), Keyword(), instance], 1, tmp_path)
    trainer.build()
    trainer.log({"a": 1})
    trainer.log_scalars({"b": 2}, True)
    trainer.log_images({}, dry_run=True)
    names = ["on_log", "on_log_scalars", "keyword", "instance"]
    assert calls == [
        *((n, {"a": 1}, False) for n in names),
        *((n, {"b": 2}, True) for n in names),
        ("images", {}, True),
    ]
    assert trainer.state.metrics == {"a": 1}, "a dry run leaves nothing behind"


def test_a_function_set_on_an_instance_is_called(tmp_path: Path) -> None:
    steps: list[int] = []
    hook = BaseHook()
    trainer = Toy([hook], 2, tmp_path)
    trainer.build()
    hook.on_after_step = lambda trainer: steps.append(trainer.step)  # type: ignore[method-assign]
    trainer.train()
    assert steps == [1, 2]


class Rare(BaseHook):
    def __init__(self, every, name="rare"):
        self.every, self.name = every, name

    def called_every(self, event):
        return self.every

    def on_after_step(self, trainer):
        trainer.append(self.name)


class Always(BaseHook):
    def on_after_step(self, trainer):
        trainer.append("always")


class Derived(Rare):
    def on_after_step(self, trainer):
        trainer.append("derived")


def called(schedule, step, is_end=False):
    names = []
    for call in schedule.at(step, everything=is_end):
        call(names)
    return names


def test_a_hook_is_called_where_it_has_something_to_do():
    schedule = Schedule([Rare(4, "four"), Always(), Rare(6, "six"), Rare(AT_LAST, "last")], "on_after_step")
    assert [called(schedule, step) for step in (1, 2, 4, 6, 12)] == [
        ["always"], ["always"], ["four", "always"], ["always", "six"], ["four", "always", "six"],
    ]  # fmt: skip
    assert called(schedule, 7, is_end=True) == called(schedule, 0) == ["four", "always", "six", "last"]


def test_a_method_that_replaces_another_is_called_at_each_step():
    replaced = Rare(10)
    replaced.on_after_step = lambda trainer: trainer.append("function")
    assert called(Schedule([Derived(10), replaced], "on_after_step"), 1) == ["derived", "function"]


def test_a_hook_can_ask_for_the_next_boundary(tmp_path: Path) -> None:
    class Last(BaseHook):
        steps: list[int] = []

        def called_every(self, event: str) -> int:
            return AT_LAST

        def on_step_boundary(self, trainer: Any) -> None:
            self.steps.append(trainer.step)
            if trainer.step == 3:
                trainer.state.needs_boundary = True

    class Asks(BaseHook):
        def on_after_step(self, trainer: Any) -> None:
            if trainer.step == 3:
                trainer.state.needs_boundary = True

    Toy([Last(), Asks()], 6, tmp_path).train()
    assert Last.steps == [3, 4, 6]


class Misspelled(BaseHook):
    def on_afterstep(self, trainer: Any) -> None: ...


@pytest.mark.parametrize(
    ("hook", "sentence"),
    [
        (Misspelled(), r"Toy\.build_hooks: Misspelled\.on_afterstep is not an event; did you mean on_after_step\?"),
        (object(), "a hook should be an instance of a launcher.BaseHook; this is an object"),
        (Misspelled, "this is the class Misspelled, so create one"),
    ],
)
def test_what_is_not_a_hook_is_rejected(hook: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Toy([hook], 1, tmp_path).build()


@pytest.mark.parametrize(
    ("method", "part", "sentence"),
    [
        ("build_data_loader", None, r"an iterable of batches; it returned nothing \(None\)"),
        ("build_model", 3, "a torch.nn.Module; it returned an int"),
        ("build_optimizer", [], "a torch.optim.Optimizer; it returned a list"),
        ("build_lr_scheduler", 3, "a scheduler of torch.optim, or None; it returned an int"),
        ("build_hooks", None, "a list of hooks; it returned nothing"),
    ],
)
def test_a_part_of_the_wrong_type_is_rejected(method: str, part: Any, sentence: str, tmp_path: Path) -> None:
    trainer = Toy([], 1, tmp_path)
    setattr(trainer, method, lambda: part)
    with pytest.raises(ConfigError, match=rf"^Toy\.{method} should return {sentence}"):
        trainer.build()


def test_a_scheduler_that_training_cannot_step_is_rejected(tmp_path: Path) -> None:
    class Timms:
        """The interface of timm's schedulers."""

        def step(self, epoch: int, metric: float | None = None) -> None: ...

    trainer = Toy([], 1, tmp_path)
    vars(trainer)["build_lr_scheduler"] = Timms
    with pytest.raises(
        ConfigError, match=r"^Toy\.build_lr_scheduler: Timms is not a torch.*step needs arguments; use "
    ):
        trainer.build()


def test_a_missing_method_is_named() -> None:
    with pytest.raises(
        NotImplementedError, match=r"BaseTrainer has no build_data_loader; add build_data_loader\(self\)"
    ):
        BaseTrainer(1).build()


def test_the_output_of_forward_is_checked_once(tmp_path: Path) -> None:
    trainer = Toy([], 3, tmp_path)
    outputs: list[Any] = []

    def forward(batch: Any) -> Any:
        loss, records = Toy.forward(trainer, batch)
        outputs.append("forward" in vars(trainer) and vars(trainer)["forward"] is forward)
        return loss, records if len(outputs) < 2 else {"a": "text, which a check would reject"}

    trainer.forward = forward  # type: ignore[method-assign]
    trainer.train()
    assert outputs == [True] * 3

    wrong = Toy([], 1, tmp_path)
    wrong.forward = lambda batch: Toy.forward(wrong, batch)[0]  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"^Toy\.forward should return \(loss, records\); it returned a Tensor\.$"):
        wrong.train()
