"""Which methods of hooks are called."""

from typing import Any

import pytest
from torch import zeros
from torch.nn import Parameter
from torch.optim import LBFGS

from launcher import BaseHook, BaseTrainer
from launcher.errors import ConfigError
from support.toy import Toy


def test_log_reaches_every_form_of_a_hook(tmp_path):
    calls: list[tuple[str, Any, bool]] = []

    class Log(BaseHook):
        def on_log(self, trainer: Any, records: dict[str, Any], dry_run: bool = False) -> None:
            calls.append(("on_log", records, dry_run))

    class Scalars(Log):
        def on_log_scalars(
            self, trainer: Any, records: dict[str, Any], dry_run: bool = False
        ) -> None:
            calls.append(("on_log_scalars", records, dry_run))

    class Keyword(BaseHook):
        def on_log(self, trainer: Any, records: dict[str, Any], *, dry_run: bool = False) -> None:
            calls.append(("keyword", records, dry_run))

        def on_log_images(
            self, trainer: Any, records: dict[str, Any], *, dry_run: bool = False
        ) -> None:
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


def test_hooks_are_called_at_each_step_those_that_run_first_before_the_others(tmp_path):
    calls: list[str] = []

    class Reads(BaseHook):
        def on_after_step(self, trainer: Any) -> None:
            calls.append(f"{trainer.step_info['max_memory']}")

        def on_step_boundary(self, trainer: Any) -> None:
            calls.append("boundary")

    class Adds(BaseHook):
        runs_first = True

        def on_after_step(self, trainer: Any) -> None:
            trainer.step_info["max_memory"] = trainer.step

    Toy([Reads(), Adds()], 3, tmp_path).train()
    assert calls == ["1", "boundary", "2", "boundary", "3", "boundary"]


class Misspelled(BaseHook):
    def on_afterstep(self, trainer: Any) -> None: ...


class Demanding(BaseHook):
    def on_after_step(self, trainer: Any, loss: float) -> None: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("hook", "sentence"),
    [
        (
            Misspelled(),
            (
                r"Toy\.build_hooks: Misspelled\.on_afterstep is not an event; did you mean"
                r" on_after_step\?"
            ),
        ),
        (Demanding(), r"Demanding\.on_after_step: .*'loss'; it is called with \(trainer\)"),
        (object(), "a hook should be an instance of a launcher.BaseHook; this is an object"),
        (Misspelled, "this is the class Misspelled, so create one"),
    ],
)
def test_object_that_is_not_a_hook_is_rejected(hook, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        Toy([hook], 1, tmp_path).build()
    with pytest.raises(ConfigError, match="on_after_stp is not an event; did you mean"):
        BaseHook().on_after_stp = print  # type: ignore[attr-defined]


class Timms:
    """The interface of timm's schedulers."""

    def step(self, epoch: int, metric: float | None = None) -> None: ...


@pytest.mark.parametrize(
    ("method", "part", "sentence"),
    [
        ("build_data_loader", None, r"an iterable of batches; it returned nothing \(None\)"),
        ("build_model", 3, "a torch.nn.Module; it returned an int"),
        ("build_optimizer", [], "should make a torch.optim.Optimizer; it made a list"),
        ("build_lr_scheduler", 3, "a scheduler of torch.optim, or None; it returned an int"),
        ("build_lr_scheduler", Timms(), "a torch.*LRScheduler; it made a Timms. Use "),
        ("build_optimizer", LBFGS([Parameter(zeros(1))]), "the step of LBFGS needs a closure, "),
        ("build_hooks", None, "a list of hooks; it returned nothing"),
    ],
)
def test_a_part_of_the_wrong_type_is_rejected(method, part, sentence, tmp_path):
    trainer = Toy([], 1, tmp_path)
    setattr(trainer, method, lambda: part)
    with pytest.raises(ConfigError, match=rf"^Toy\.{method}.*{sentence}"):
        trainer.build()


def test_a_missing_method_is_named():
    with pytest.raises(
        NotImplementedError,
        match=r"BaseTrainer has no build_data_loader; add build_data_loader\(self\)",
    ):
        BaseTrainer(1).build()


def test_the_output_of_forward_is_checked_once(tmp_path):
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
    with pytest.raises(
        ConfigError,
        match=r"^Toy\.forward should return \(loss, records\) with a dict of records;"
        r" it returned a Tensor\.$",
    ):
        wrong.train()
