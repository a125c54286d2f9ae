"""Handlers belong to the process, the flag to a run."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from launcher import BaseTrainer
from launcher.hooks.base import BaseHook
from launcher.hooks.checkpointing import CheckpointingHook
from launcher.process import signals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Handlers and flag as they were."""
    before = {signum: signal.getsignal(signum) for signum in (*signals.HANDLED, signal.SIGXCPU)}
    yield
    signals.restore(before)
    signals.forget()


class Small(BaseTrainer):
    """Three steps of a linear model; sends itself a signal at the step `stop_at`."""

    def __init__(self, *hooks: BaseHook, stop_at: int = 0, **options: Any):
        super().__init__(max_steps=3, **options)
        self.own_hooks, self.stop_at = hooks, stop_at

    def build_data_loader(self) -> Any:
        return [torch.ones(2, 1)] * 8

    def build_model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def build_hooks(self) -> Any:
        return self.own_hooks

    def forward(self, input: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        if self.step == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.model(input).mean(), {}


def test_a_run_stopped_by_a_signal_does_not_stop_the_next() -> None:
    signals.install()
    first = Small(stop_at=1)
    with pytest.raises(signals.SignalExit) as stop:
        first.train()
    assert (first.step, stop.value.code) == (1, 128 + signal.SIGTERM)
    second = Small()
    second.train()
    assert second.step == 3


def test_a_signal_before_a_run_stops_it() -> None:
    signals.install()
    os.kill(os.getpid(), signal.SIGTERM)
    trainer = Small()
    with pytest.raises(signals.SignalExit):
        trainer.train()
    assert trainer.step == 0


def test_a_hook_s_handlers_end_with_its_run(tmp_path: Any) -> None:
    before = signal.getsignal(signal.SIGXCPU)
    hook = CheckpointingHook(interval=10, exit_signals=["XCPU", signal.SIGTERM])
    with pytest.raises(signals.SignalExit):
        Small(hook, stop_at=2, workspace=tmp_path).train()
    assert signal.getsignal(signal.SIGXCPU) is before
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and not signals.installed()


def test_the_process_s_handlers_stay(tmp_path: Any) -> None:
    signals.install()
    Small(CheckpointingHook(interval=10, exit_signals="XCPU"), workspace=tmp_path).train()
    assert signals.installed() == {*signals.HANDLED, signal.SIGXCPU}
    os.kill(os.getpid(), signal.SIGXCPU)
    assert signals.received() == signal.SIGXCPU


@pytest.mark.parametrize("signum", signals.HANDLED)
def test_signals_that_a_shell_ignores_at_the_start_stay_ignored(signum: int) -> None:
    """`nohup` ignores SIGHUP, a shell's `&` SIGINT and SIGQUIT; our batch script ignores the others
    briefly."""
    signal.signal(signum, signal.SIG_IGN)
    signals.install()
    os.kill(os.getpid(), signum)
    left_ignored = signum in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    assert signals.received() == (0 if left_ignored else signum)
