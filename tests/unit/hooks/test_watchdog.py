"""Steps that take too long."""

import time
from pathlib import Path
from typing import Any

import pytest

from launcher import FunctionHook
from launcher.hooks.watchdog import WatchdogHook
from support import python
from support.paths import TESTS
from support.toy import Toy

STALL = """
import time, logging
from pathlib import Path
from launcher import FunctionHook
from launcher.hooks.watchdog import WatchdogHook
from support.toy import Toy

logging.basicConfig()

def hang_here(trainer, batch):
    if trainer.step == 5:
        time.sleep(60)

Toy([WatchdogHook(factor=5, min_seconds=0.2, abort=True), FunctionHook(on_batch=hang_here)], 6, Path(".")).train()
"""


def test_a_slow_step_is_reported_once_with_the_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hook = WatchdogHook(factor=2, min_seconds=2)  # other steps never take that long

    def wait_for_the_report(trainer: Any, batch: Any) -> None:
        end = time.monotonic() + 120
        while trainer.step == 5 and not hook.reports and time.monotonic() < end:
            time.sleep(0.01)

    Toy([hook, FunctionHook(on_batch=wait_for_the_report)], 8, tmp_path).train()
    assert hook.reports == 1
    (message,) = [record.getMessage() for record in caplog.records if "Step 5 has taken" in record.getMessage()]
    assert "the median of the last 4 is" in message and "in wait_for_the_report" in message


def test_abort_ends_the_process_with_the_place(tmp_path: Path) -> None:
    done = python.run("-c", STALL, cwd=tmp_path, env={**python.os.environ, "PYTHONPATH": str(TESTS)}, timeout=240)
    assert done.returncode == 1
    assert "Step 5 has taken" in done.stderr and "in hang_here" in done.stderr
    assert "hooks.watchdog.abort=true: forced exit. The last checkpoint is valid." in done.stderr
