"""A signal is looked at once at each step boundary."""

import os
import signal
from typing import Any

import pytest
import torch

from launcher import BaseHook, CheckpointingHook, FunctionHook
from launcher.data import ResumableLoader
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
        ("before_step", 3, 3),  # a hook of the user's has acted, so the step is finished
        ("after_step", 3, 3),
        # The hooks of this boundary agree on no signal; the next step does not begin.
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


class Drawing:
    """Draws from the training's generators; a signal comes in the middle of one of the calls."""

    def __init__(self, at: int):
        self.at = at

    def __call__(self, *_: Any) -> torch.Tensor:
        before, self.at = torch.rand(2), self.at - 1
        if self.at == 0:
            kill()
        return before + torch.rand(2)

    __getitem__ = __call__

    def __len__(self) -> int:
        return 12


@pytest.mark.parametrize(
    ("place", "at"), [("on_epoch_start", 2), ("on_before_step", 2), ("dataset", 6), ("loader", 2)]
)
def test_what_was_drawn_before_a_signal_is_not_drawn_again(tmp_path, place, at):
    def train(folder: str, at: int) -> list[torch.Tensor]:
        draw: Any = Drawing(at)
        hooks = [FunctionHook(**{place: draw})] if place.startswith("on_") else []
        dataset = draw if place == "dataset" else torch.arange(24.0).reshape(12, 2)
        batches: Any = ResumableLoader(dataset, seed=0, micro_batch_size=4)
        batches = (draw()[None] for _ in range(9)) if place == "loader" else batches
        trainer = Toy([CheckpointingHook(99), *hooks], 7, tmp_path / folder, batches)
        trainer.train()
        return list(trainer.model.parameters())

    signals.install()
    whole = train("whole", 0)
    with pytest.raises(signals.SignalExit):
        train("parts", at)
    assert all(map(torch.equal, train("parts", 0), whole))
