"""Which methods of hooks are called."""

from pathlib import Path
from typing import Any

from launcher import BaseHook
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
