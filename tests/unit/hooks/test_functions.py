"""Plain functions on events, and the order of all events."""

from pathlib import Path
from typing import Any

import pytest

from launcher import CheckpointingHook, EvaluationHook, FunctionHook, LoggingHook
from launcher.errors import ConfigError
from launcher.hooks.functions import EVENTS
from support.toy import GOOD, Toy

SEEN: list[int] = []


def note_step(trainer: Any) -> None:
    SEEN.append(trainer.step)


def test_functions_are_called_with_the_arguments_of_their_event(tmp_path):
    """A function may be named by its path."""
    SEEN.clear()
    hook = FunctionHook(on_after_step=f"{__name__}.note_step")
    hook.on("on_after_step", lambda trainer: SEEN.append(-trainer.step))
    records: list[Any] = []
    log = FunctionHook(
        on_log_scalars=lambda trainer, values, dry_run: records.append((dry_run, set(values)))
    )
    Toy([hook, log, LoggingHook(2)], 2, tmp_path).train()
    assert SEEN == [1, -1, 2, -2]
    assert records == [(False, {"train"})]


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ({"on_step": print}, "on_step: no such event; the events are on_start"),
        (
            {"on_after_step": "os.path.no_such"},
            "on_after_step=os.path.no_such: there is no such function",
        ),
        ({"on_after_step": "print"}, "there is no such function"),
    ],
)
def test_function_hook_rejects_a_path_that_does_not_exist(functions, message):
    with pytest.raises(ConfigError, match=message):
        FunctionHook(**functions)


def test_every_event_of_a_run_in_its_order(tmp_path):
    events: list[str] = []

    def noted(name: str) -> Any:
        return lambda *args, **options: events.append(name)

    hook = FunctionHook(**{name: noted(name) for name in EVENTS if name != "on_log"})
    Toy([EvaluationHook(0, lambda: [GOOD]), CheckpointingHook(1), hook], 1, tmp_path).train()
    assert events == [
        "on_start", "on_restore", "on_before_train",
        "on_evaluation_start", "on_evaluation_end", "on_log_scalars",  # of the first weights
        "on_ready", "on_epoch_start", "on_before_step", "on_batch", "on_before_optimizer_step",
        "on_after_step", "on_evaluation_start", "on_evaluation_end", "on_log_scalars",
        "on_last_step", "on_state_dict", "on_checkpoint_saved", "on_step_boundary",
        "on_after_train", "on_close",
    ]  # fmt: skip


@pytest.mark.parametrize("asynchronous", [False, True])
def test_each_durable_checkpoint_is_reported_once(tmp_path, asynchronous):
    saved: list[str] = []

    def check(trainer: Any, path: Path) -> None:
        assert (path / "manifest.json").exists()
        saved.append(path.name)

    checkpointing = CheckpointingHook(2, asynchronous=asynchronous)
    Toy([checkpointing, FunctionHook(on_checkpoint_saved=check)], 5, tmp_path).train()
    assert saved == ["step-00000002", "step-00000004", "step-00000005"]


def test_an_error_reaches_hooks_before_they_close(tmp_path):
    events: list[Any] = []

    def fail(trainer: Any) -> None:
        if trainer.step == 2:
            raise RuntimeError("broken")

    hook = FunctionHook(on_error=lambda trainer, error: events.append((trainer.step, str(error))))
    hook.on("on_close", lambda trainer: events.append("closed"))
    with pytest.raises(RuntimeError, match="broken"):
        Toy([FunctionHook(on_before_step=fail), hook], 3, tmp_path).train()
    assert events == [(2, "broken"), "closed"]
