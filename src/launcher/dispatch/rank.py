"""One rank of several, started by `launcher.dispatch.spawner`.

`python -m launcher.dispatch.rank FOLDER` reads `job.yaml` there, a checked and resolved
configuration, and writes the rank's report to `rank-<r>.json`: `kind` is done (with `value`),
stopped (`signum`, `code`), rejected (`messages`) or failed (`text`; and `hung_after`, the signal
after which it made no progress). `time` is on the machine's monotonic clock. At its first signal it
writes `signal-<number>`.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from launcher.dispatch.spawner import JOB, SIGNAL
from launcher.process import collector, deadline, exits, signals
from launcher.process.parent import when_parent_ends
from launcher.rundir.logs import prepare_output

PR_SET_PDEATHSIG = 1
CLOSING = 10.0
"""Seconds within which a failed rank must exit."""


def begin_as_child() -> None:
    """Set up a spawned process: signals, the watch on its parent, the user's modules."""
    signals.install()
    prepare_output()
    collector.pause()
    follow_parent()
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def follow_parent() -> None:
    """Lift the block of signals that the parent has set, and end with the parent."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*signals.HANDLED, signal.SIGCHLD})
    end_with_parent(int(os.environ["LAUNCHER_PARENT"]))


def main() -> None:
    folder = Path(sys.argv[1])

    def report_signal(signum: int) -> None:
        # The command has ended, and its folder is gone.
        with suppress(OSError):
            (folder / f"{SIGNAL}{signum}").touch()

    signals.on_first(report_signal)
    begin_as_child()

    def write(report: dict[str, object]) -> None:
        report["time"] = time.monotonic()
        (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(report, default=str))

    with deadline.on_forced_exit(
        lambda signum, reason: write(
            {"kind": "failed", "text": f"{reason}\n", "hung_after": signum}
        )
    ):
        report, code = work(folder)
    exits.begin_exit()
    write(report)
    sys.stdout.flush()
    if report["kind"] == "failed":
        watchdog = threading.Timer(CLOSING, os._exit, (code,))
        watchdog.daemon = True
        watchdog.start()
    sys.exit(code)


def work(folder: Path) -> tuple[dict[str, object], int]:
    """Run the job; return the report and the exit code."""
    from launcher.config.explain import explain, user_traceback
    from launcher.errors import TrainingError

    try:
        return {"kind": "done", "value": run(folder / JOB)}, 0
    except signals.SignalExit as stop:
        return {"kind": "stopped", "signum": stop.signum}, int(stop.code or 0)
    except BaseException as error:
        if messages := explain(error):
            return {"kind": "rejected", "messages": messages}, 2
        text = f"{error}\n" if isinstance(error, TrainingError) else user_traceback(error)
        return {"kind": "failed", "text": text}, 1


def run(path: Path) -> object:
    from launcher.config.explain import log_traceback
    from launcher.config.run_config import load_job
    from launcher.dispatch import forced_exit
    from launcher.dispatch.job import run_job

    config = load_job(path)
    forced_exit.arm(config.plain["dispatch"])
    try:
        return run_job(config)
    except Exception as error:
        log_traceback(error, config.folder, int(os.environ["RANK"]))
        raise


def end_with_parent(parent: int) -> None:
    """Get a SIGTERM when the command that started us ends, so that no rank outlives it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        # The parent may have ended before the call, which then has no effect.
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
    else:
        when_parent_ends(parent, lambda: os.kill(os.getpid(), signal.SIGTERM))


if __name__ == "__main__":
    main()
