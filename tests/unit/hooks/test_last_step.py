"""Logs of the last step are there whichever step turns out to be the last, and once."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from launcher import BaseHook, EvaluationHook, LoggingHook
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


class Stops(BaseHook):
    """Ends the training at a step, after the hooks before it were called."""

    def __init__(self, step: int, event: str):
        self.step, self.event = step, event

    def on_after_step(self, trainer: Any) -> None:
        self._stop(trainer, "on_after_step")

    def on_epoch_end(self, trainer: Any) -> None:
        self._stop(trainer, "on_epoch_end")

    def _stop(self, trainer: Any, event: str) -> None:
        if trainer.step == self.step and event == self.event:
            trainer.state.stop("on purpose")


@pytest.mark.parametrize("ends_by", ["max_steps", "on_after_step", "on_epoch_end"])
@pytest.mark.parametrize("last", [2 * INTERVAL - 1, 2 * INTERVAL])
@pytest.mark.parametrize("group", HOOKS)
def test_last_step_is_logged_once(group, last, ends_by, tmp_path):
    recorder = Recorder()
    max_steps = last if ends_by == "max_steps" else 100
    hooks = [HOOKS[group](), recorder, Stops(last, ends_by)]
    Toy(hooks, max_steps, tmp_path, batches=[GOOD]).train()
    steps = Counter(step for step, records in recorder.records if group in records)
    assert steps == Counter({INTERVAL, last})
