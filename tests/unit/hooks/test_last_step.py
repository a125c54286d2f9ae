"""Logs of the last step are there whichever step turns out to be the last, and once."""

from collections.abc import Callable
from typing import Any

import pytest

from launcher import BaseHook, EvaluationHook, FunctionHook, LoggingHook
from launcher.hooks.memory import MemoryHook
from launcher.hooks.skip_spikes import SkipSpikesHook
from launcher.hooks.throughput import ThroughputHook
from support.toy import GOOD, Recorder, Toy

INTERVAL = 4
HOOKS: dict[str, Callable[[], BaseHook]] = {
    "train": lambda: LoggingHook(INTERVAL),
    "val": lambda: EvaluationHook(INTERVAL, lambda: [GOOD], at_start=False),
    "memory": lambda: MemoryHook(INTERVAL),
    "spikes": lambda: SkipSpikesHook(interval=INTERVAL),
    "throughput": lambda: ThroughputHook(INTERVAL),
}


@pytest.mark.parametrize("ends_by", ["max_steps", "on_after_step", "on_epoch_end"])
@pytest.mark.parametrize("last", [2 * INTERVAL - 1, 2 * INTERVAL])
@pytest.mark.parametrize("group", HOOKS)
def test_last_step_is_logged_once(group, last, ends_by, tmp_path):
    def stop(trainer: Any) -> None:
        if trainer.step == last:
            trainer.state.stop("on purpose")

    recorder, hooks = Recorder(), [HOOKS[group]()]
    if ends_by == "max_steps":
        Toy([*hooks, recorder], last, tmp_path, batches=[GOOD]).train()
    else:
        stops = FunctionHook(**{ends_by: stop})
        Toy([*hooks, recorder, stops], 100, tmp_path, batches=[GOOD]).train()
    assert [step for step, _ in recorder.of(group)] == [INTERVAL, last]
