"""Handlers belong to the process, the flag to a run."""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from launcher import BaseHook, CheckpointingHook, FunctionHook
from launcher.data import ResumableLoader
from launcher.process import signals
from support.toy import GOOD, Toy


@pytest.fixture(autouse=True)
def handlers():
    """Handlers and flag as they were."""
    before = {signum: signal.getsignal(signum) for signum in (*signals.HANDLED, signal.SIGXCPU)}
    yield
    signals.restore(before)
    signals.forget()


def toy(*hooks: BaseHook, workspace: Path, stop_at: int = 0) -> Toy:
    """Return a trainer of three steps that sends itself a signal at the step `stop_at`."""

    def stop(trainer: Any, batch: Any) -> None:
        if trainer.step == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    return Toy([FunctionHook(on_batch=stop), *hooks], 3, workspace, [GOOD])


def test_a_run_stopped_by_a_signal_does_not_stop_the_next(tmp_path):
    signals.install()
    first = toy(workspace=tmp_path, stop_at=1)
    with pytest.raises(signals.SignalExit) as stop:
        first.train()
    assert (first.step, stop.value.code) == (1, 128 + signal.SIGTERM)
    second = toy(workspace=tmp_path)
    second.train()
    assert second.step == 3


def test_a_signal_before_a_run_stops_it(tmp_path):
    signals.install()
    os.kill(os.getpid(), signal.SIGTERM)
    trainer = toy(workspace=tmp_path)
    with pytest.raises(signals.SignalExit):
        trainer.train()
    assert trainer.step == 0


def test_a_hook_s_handlers_end_with_its_run(tmp_path):
    before = signal.getsignal(signal.SIGXCPU)
    hook = CheckpointingHook(interval=10, exit_signals=["XCPU", signal.SIGTERM])
    with pytest.raises(signals.SignalExit):
        toy(hook, stop_at=2, workspace=tmp_path).train()
    assert signal.getsignal(signal.SIGXCPU) is before
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and not signals.handled_signals()


def test_the_process_s_handlers_stay(tmp_path):
    signals.install()
    toy(CheckpointingHook(interval=10, exit_signals="XCPU"), workspace=tmp_path).train()
    assert signals.handled_signals() == {*signals.HANDLED, signal.SIGXCPU}
    os.kill(os.getpid(), signal.SIGXCPU)
    assert signals.first_signal() == signal.SIGXCPU


@pytest.mark.parametrize("signum", signals.HANDLED)
def test_signals_that_a_shell_ignores_at_the_start_stay_ignored(signum):
    """`nohup` ignores SIGHUP, a shell's `&` SIGINT and SIGQUIT; our batch script ignores the others
    briefly."""
    signal.signal(signum, signal.SIG_IGN)
    signals.install()
    os.kill(os.getpid(), signum)
    left_ignored = signum in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    assert signals.first_signal() == (0 if left_ignored else signum)


@pytest.mark.parametrize("round", range(5))
@pytest.mark.parametrize("by_thread", [False, True])
@pytest.mark.parametrize("signum", [s for s in signals.HANDLED if s != signal.SIGINT])
def test_a_signal_ends_a_forked_child(signum, by_thread, round):
    """A signal may be sent before the child has run its first instruction."""
    signals.install()
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))

    def start() -> None:
        child.start()
        os.kill(child.pid or 0, signum)
        child.join()

    if by_thread:
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
    else:
        start()
    assert child.exitcode == -signum
    assert not signals.first_signal() and signals.handled_signals() == {*signals.HANDLED}
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


def in_child(check: Any) -> int:
    """Return the exit code of a forked child that calls `check`."""
    child = multiprocessing.get_context("fork").Process(target=check)
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def test_a_forked_child_has_python_s_actions_and_may_handle_signals_itself():
    def check() -> None:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGXCPU) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, "as the shell has set it"
        assert not signals.handled_signals() and not signals.first_signal()
        signals.install()
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.first_signal() == signal.SIGTERM

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals.install([*signals.HANDLED, signal.SIGXCPU])
    os.kill(os.getpid(), signal.SIGUSR1)
    assert in_child(check) == 0
    assert signals.first_signal() == signal.SIGUSR1


def test_a_data_worker_ignores_the_signals_of_its_parent():
    def check() -> None:
        signals.ignore_in_child()
        for signum in (*signals.HANDLED, signal.SIGXCPU):
            os.kill(os.getpid(), signum)

    signals.install([*signals.HANDLED, signal.SIGXCPU])
    with signals.block():
        assert in_child(check) == 0


class Rows:
    """Samples whose reading, or a batch of which, gets a signal and may catch any exception."""

    def __init__(self, place: str, caught: type[BaseException]):
        self.place, self.caught = place, caught

    def __len__(self) -> int:
        return 4

    def send(self, place: str) -> int:
        if place != self.place:
            return 0
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            return 0
        except self.caught:
            return -1

    def __getitem__(self, index: int) -> int:
        return self.send("sample")

    def collate(self, samples: list[int]) -> int:
        return self.send("batch")

    def state_dict(self) -> Any:
        return {"calls": Pickled(self)}

    def load_state_dict(self, state: Any) -> None: ...


class Pickled:
    def __init__(self, rows: Rows):
        self.rows = rows

    def __reduce__(self) -> Any:
        return int, (self.rows.send("state"),)


@pytest.mark.parametrize("place", ["sample", "batch", "state"])
@pytest.mark.parametrize("caught", [ZeroDivisionError, Exception, BaseException])
def test_a_signal_ends_a_wait_for_data_whatever_the_data_catch(place, caught):
    """A batch with a replaced sample, or an error about the data, would change the run."""
    signals.install()
    rows = Rows(place, caught)
    loader = ResumableLoader(rows, seed=0, micro_batch_size=2, collate_fn=rows.collate)
    batches = iter(loader)
    with pytest.raises(signals.Interrupted):
        signals.wait_for(lambda: next(batches))
