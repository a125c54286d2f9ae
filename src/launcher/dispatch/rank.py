"""One rank of several, started by `launcher.dispatch.spawner`.

It reads `job.yaml` in its folder, and writes its report to `rank-<r>.json`: `kind` is done (with
`value`), stopped (`signum`, `code`), rejected (`messages`) or failed (`text`; and `hung_after`, the
signal after which it made no progress). `time` is on the machine's monotonic clock. At its first
signal it writes `signal-<number>`.
"""

import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from launcher.dispatch.spawner import JOB, SIGNAL
from launcher.process import deadline, signals, user_exits
from launcher.process.process_id import RANK

CLOSING = 10.0
"""Seconds within which a failed rank must exit."""


def note_signals(folder: Path) -> None:
    """Let the first signal write its file, before the handlers are installed."""

    def write(signum: int) -> None:
        # The command has ended, and its folder is gone.
        with suppress(OSError):
            (folder / f"{SIGNAL}{signum}").touch()

    signals.on_first(write)


def run_rank(folder: Path) -> int:
    """Run the job, and report; return the exit code."""

    def write(report: dict[str, object]) -> None:
        report["time"] = time.monotonic()
        (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(report, default=str))

    with deadline.on_forced_exit(
        lambda signum, reason: write(
            {"kind": "failed", "text": f"{reason}\n", "hung_after": signum}
        )
    ):
        report, code = work(folder)
    user_exits.begin_exit()
    write(report)
    sys.stdout.flush()
    if report["kind"] == "failed":
        watchdog = threading.Timer(CLOSING, os._exit, (code,))
        watchdog.daemon = True
        watchdog.start()
    return code


def work(folder: Path) -> tuple[dict[str, object], int]:
    """Run the job; return the report and the exit code."""
    from launcher.config.explain import explain, user_traceback
    from launcher.errors import TrainingError

    try:
        return {"kind": "done", "value": _run(folder / JOB)}, 0
    except signals.SignalExit as stop:
        code = int(stop.code or 0)
        return {"kind": "stopped", "signum": stop.signum, "code": code}, code
    except BaseException as error:
        messages = explain(error)
        if messages:
            return {"kind": "rejected", "messages": messages}, 2
        text = f"{error}\n" if isinstance(error, TrainingError) else user_traceback(error)
        return {"kind": "failed", "text": text}, 1


def _run(file: Path) -> object:
    from launcher.config.explain import log_traceback
    from launcher.config.run_config import load_job
    from launcher.dispatch import forced_exit
    from launcher.dispatch.run_job import execute_job

    config = load_job(file)
    forced_exit.arm(config.plain["dispatch"])
    try:
        return execute_job(config)
    except Exception as error:
        log_traceback(error, config.folder, int(os.environ[RANK]))
        raise
