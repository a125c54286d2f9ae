"""Steps that take too long."""

import sys
import time
from typing import Any

from launcher import FunctionHook
from launcher.hooks.watchdog import WatchdogHook
from support.terminal import in_terminal
from support.toy import Toy


def test_slow_step_prints_its_stacks_once_and_training_continues(tmp_path, caplog, capfd):
    hook = WatchdogHook(factor=2, min_seconds=2)  # other steps never take that long

    def hang_in_step_5(trainer: Any, batch: Any) -> None:
        if trainer.step == 5:
            time.sleep(hook.limit + 0.5)

    Toy([hook, FunctionHook(on_batch=hang_in_step_5)], 8, tmp_path).train()
    (message,) = [
        record.getMessage()
        for record in caplog.records
        if "Standard error shows" in record.getMessage()
    ]
    assert message.startswith("Step 5 took") and "the median of the last 4 is" in message
    printed = capfd.readouterr().err
    assert printed.count("Timeout (") == 1 and "in hang_in_step_5" in printed


def test_evaluation_and_the_end_are_not_watched(tmp_path, capfd):
    hook = WatchdogHook(first_seconds=0.5)
    trainer = Toy([hook], 1, tmp_path)
    for event in (hook.on_evaluation_start, hook.on_step_boundary, hook.on_close):
        hook.on_before_step(trainer)
        event(trainer)
    time.sleep(0.7)
    assert "Timeout (" not in capfd.readouterr().err


def test_abort_ends_the_process_with_its_stacks(tmp_path):
    def hang_here(trainer: Any, batch: Any) -> None:
        if trainer.step == 5:
            time.sleep(60)

    def train() -> None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - pytest has put its own in its place
        hook = WatchdogHook(factor=5, min_seconds=2, abort=True)
        Toy([hook, FunctionHook(on_batch=hang_here)], 6, tmp_path).train()

    code, output = in_terminal(train, 80)
    assert code == 1
    assert "Step 5 has taken more than" in output and "in hang_here" in output
    assert "hooks.watchdog.abort=true: forced exit. The last checkpoint is valid." in output
