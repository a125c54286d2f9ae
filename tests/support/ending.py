"""A run in a SLURM job that gets SIGTERM: `python -m support.ending FOLDER POINT CALLS`.

Two threads may end it: the main thread once the save has ended, and the forced exit. The first of
them waits at POINT for the other one, and then LONGER: a process whose end has no owner would end
meanwhile. The file CALLS has the calls of scontrol.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from launcher.config.run_config import RunConfig
from launcher.process import deadline, signals
from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from launcher.slurm.causes import Budget
from launcher.slurm.requeue import run_guarded
from launcher.strategies.step import StepPlan
from launcher.train.attempt_record import AttemptLog

LONGER = 0.2
MAIN_FIRST = ("its end is being recorded", "its end is recorded")
"""Places of the main thread when the forced exit begins."""
BEGIN = "its begin is being recorded"
"""A place of the main thread, which the signal has reached before."""
DISARMED = "the cause is asked for"
"""Place from which on no forced exit begins."""
FORCED_FIRST = ("it begins", "its end is being recorded, forced", "the job is left")
"""Places of the forced exit when the save ends."""
CALLS = {"the cause is asked for, forced": 1, "the job is being requeued, forced": 2, DISARMED: 2}
"""The same, by the number of the call of scontrol. The signal itself asks too, so the main thread
has asked by the second call."""

folder, point = RunFolder(Path(sys.argv[1])), sys.argv[2]
first_is_there, forced_has_begun = threading.Event(), threading.Event()


def reach(name: str) -> None:
    """The first thread has come this far."""
    if name == point and not first_is_there.is_set():
        first_is_there.set()
        if name in (*MAIN_FIRST, BEGIN):
            forced_has_begun.wait(60)
        time.sleep(LONGER)


def watch_calls() -> None:
    """Reach the points at which scontrol is called."""
    number, calls = CALLS[point], Path(sys.argv[3])
    while len(calls.read_text().splitlines()) <= number:  # the first call is that of the start
        time.sleep(0.01)
    if point != DISARMED:
        # The signal itself asks for the cause too, perhaps before the forced exit begins.
        forced_has_begun.wait(60)
    first_is_there.set()


def reach_record() -> None:
    """Called just before run.json is replaced."""
    if signals.first_signal():
        is_main = threading.current_thread() is threading.main_thread()
        reach(
            BEGIN if is_main and point == BEGIN else MAIN_FIRST[0] if is_main else FORCED_FIRST[1]
        )


def at_forced_exit(name: str) -> None:
    """Reach a point there after the callbacks that are added from now on."""

    def callback(signum: int, reason: str) -> None:
        forced_has_begun.set()
        reach(name)

    # Without a context, whose end would wait for the forced exit.
    deadline._state.callbacks.append(callback)


def seconds_left() -> float:
    if point in (*MAIN_FIRST, BEGIN, DISARMED):
        first_is_there.wait(60)
    return 0.0


def work() -> None:
    log = AttemptLog(config, folder, on_begin=lambda: None)
    log.record = RunRecord(folder, check_lock=reach_record)
    strategy, cpu = SimpleNamespace(name="none", plan=StepPlan()), torch.device("cpu")
    context = SimpleNamespace(settings=None)
    trainer: Any = SimpleNamespace(strategy=strategy, step=0, hooks=[], device=cpu, context=context)
    log.trainer = trainer
    try:
        with log.record_end():
            if point != BEGIN:
                log.begin()
            at_forced_exit("it begins")
            deadline.arm(None, seconds_left)
            os.kill(os.getpid(), signal.SIGTERM)
            if point == BEGIN:
                log.begin()
            if point in (*FORCED_FIRST, *CALLS) and point != DISARMED:
                first_is_there.wait(60)
            trainer.step = 4  # it is saved
            raise signals.SignalExit(signal.SIGTERM)
    finally:
        reach("its end is recorded")


signals.install()
tree: dict[str, Any] = {
    "run": {"name": "gpt", "id": "1a2b", "dir": sys.argv[1]},
    "trainer": {"max_steps": 10},
    "strategy": {"_target_": "launcher.strategies.none.NoStrategy"},
    "dispatch": {},
    "paths": {"outputs": "outputs"},
}
config = RunConfig(tree, tree)
if point in CALLS:
    threading.Thread(target=watch_calls, daemon=True).start()
at_forced_exit("the job is left")
run_guarded(work, folder, Budget())
