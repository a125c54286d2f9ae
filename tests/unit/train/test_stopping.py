"""A signal is looked at once at each step boundary."""

import os
import signal

import pytest

from launcher.hooks.base import TrainState
from launcher.run import signals
from launcher.run.ranks import Agreement
from launcher.train.stopping import Stopping

TERM = signal.SIGTERM


@pytest.fixture
def stopping() -> Stopping:
    signals.install()
    return Stopping(Agreement())


def test_the_answer_at_a_boundary_does_not_change(stopping: Stopping) -> None:
    """The hooks of one boundary would else disagree whether training ends."""
    state = TrainState(max_steps=9, step=3)
    assert stopping.signal(state) == 0
    os.kill(os.getpid(), TERM)
    assert stopping.signal(state) == 0
    state.step = 4
    assert stopping.signal(state) == TERM


def test_a_boundary_without_a_step_is_asked_again(stopping: Stopping) -> None:
    state = TrainState(max_steps=9)
    assert stopping.signal(state) == 0
    os.kill(os.getpid(), TERM)
    stopping.ask_again()
    assert stopping.signal(state) == TERM


@pytest.mark.parametrize("end", [{"max_steps": 3}, {"max_steps": 9, "stop_reason": "early stopping"}])
def test_a_run_that_has_ended_is_not_stopped(stopping: Stopping, end: dict) -> None:
    os.kill(os.getpid(), TERM)
    assert stopping.signal(TrainState(step=3, **end)) == 0


def test_an_interrupted_last_step_is_repeated(stopping: Stopping) -> None:
    """A signal came during the evaluation after the last step, so the run has not ended."""
    state = TrainState(max_steps=3, step=3)
    assert stopping.signal(state) == 0
    os.kill(os.getpid(), TERM)
    stopping.stop_here(state)
    assert stopping.signal(state) == TERM
