"""A signal is looked at once at each step boundary."""

import os
import signal
from typing import Any

import pytest

from launcher import BaseHook, FunctionHook
from launcher.process import signals
from support.toy import GOOD, Toy

TERM = signal.SIGTERM


def kill() -> None:
    os.kill(os.getpid(), TERM)


class Signals(BaseHook):
    """Keeps `stop_signal` of each boundary; a signal comes in the given events."""

    def __init__(self, *at: tuple[str, int]):
        self.at, self.seen = at, []

    def _note(self, event: str, trainer: Any) -> None:
        if (event, trainer.step) in self.at:
            kill()

    def on_ready(self, trainer: Any) -> None:
        self._note("ready", trainer)

    def on_before_step(self, trainer: Any) -> None:
        self._note("before_step", trainer)

    def on_after_step(self, trainer: Any) -> None:
        self._note("after_step", trainer)

    def on_step_boundary(self, trainer: Any) -> None:
        self.seen.append((trainer.step, trainer.stop_signal))
        self._note("boundary", trainer)
        self.seen.append((trainer.step, trainer.stop_signal))


@pytest.mark.parametrize(
    ("event", "step", "stopped_at"),
    [
        ("ready", 0, 0),
        ("before_step", 3, 2),  # nothing of step 3 has been computed
        ("after_step", 3, 3),
        # The hooks of this boundary agree on no signal; the wait for the next batch ends.
        ("boundary", 3, 3),
    ],
)
def test_a_signal_stops_training_at_the_next_boundary_for_all_of_its_hooks(
    tmp_path, event, step, stopped_at
):
    signals.install()
    first, last = Signals((event, step)), Signals()
    with pytest.raises(signals.SignalExit) as stop:
        Toy([first, last], 9, tmp_path, [GOOD]).train()
    assert stop.value.signum == TERM
    assert first.seen == last.seen
    assert first.seen[-2:] == [(stopped_at, TERM)] * 2
    assert all(signum == 0 for _, signum in first.seen[:-2])


@pytest.mark.parametrize("reason", [None, "early stopping"])
def test_a_run_that_has_ended_is_not_stopped_by_a_signal(tmp_path, reason):
    def end(trainer: Any) -> None:
        if reason and trainer.step == 3:
            trainer.state.stop(reason)

    signals.install()
    hook = Signals(("after_step", 3))
    Toy([FunctionHook(on_after_step=end), hook], 9 if reason else 3, tmp_path).train()
    assert hook.seen[-2:] == [(3, 0)] * 2


def test_an_interrupted_last_step_stops_the_run_which_repeats_it(tmp_path):
    """A signal came during the evaluation after the last step, so the run has not ended."""

    def interrupt(trainer: Any) -> None:
        if trainer.step == 3:
            kill()
            trainer.stop_at_this_boundary()

    signals.install()
    hook = Signals()
    with pytest.raises(signals.SignalExit):
        Toy([FunctionHook(on_after_step=interrupt), hook], 3, tmp_path).train()
    assert hook.seen[-2:] == [(3, TERM)] * 2
