"""The follower's process, which the training process launches, logs, and briefly waits for."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from launcher.process import signals
from launcher.process.child import describe_end, start_child
from launcher.rundir.folder import RunFolder

WAIT = 10.0
"""Seconds for which a run that has ended waits for its trackers."""

logger = logging.getLogger("launcher")


class FollowerProcess:
    """The process that mirrors a run in its trackers, if there are any."""

    def __init__(self, folder: RunFolder, names: Iterable[str]):
        self.folder = folder
        self.names = list(names)
        self.process: subprocess.Popen[Any] | None = None

    def start(self) -> None:
        """Start it in a new session, where Ctrl-C and this group's signals do not reach it."""
        if not self.names:
            return
        command = [
            sys.executable,
            "-m",
            "launcher.trackers.follower",
            str(self.folder.path),
            *self.names,
        ]
        log = self.folder.logs / "tracker.log"
        try:
            self.process = start_child(
                command, log, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
        except OSError as error:
            logger.warning(
                "The trackers could not be started (%s); complete them with %s.",
                error,
                self._sync(),
            )
            return
        threading.Thread(target=self._relay, name="trackers", daemon=True).start()

    def wait(self, seconds: float = WAIT) -> None:
        """Wait until the trackers have everything, at most `seconds`, and not after a signal."""
        until = time.monotonic() + seconds
        while (
            self.process is not None and self.process.poll() is None and not signals.first_signal()
        ):
            if time.monotonic() > until:
                logger.warning(
                    "The trackers are not complete; process %d continues with them. To be sure: %s",
                    self.process.pid,
                    self._sync(),
                )
                return
            time.sleep(0.02)

    def _relay(self) -> None:
        """Log the follower's reports, which are only problems, and its end if it was killed."""
        assert self.process is not None and self.process.stdout is not None
        for line in self.process.stdout:
            level, _, text = line.rstrip("\n").partition(" ")
            if level.isdigit():
                logger.log(int(level), "%s", text)
        code = self.process.wait()
        if code:
            text = "The trackers' process %s; training continues. Complete them with: %s"
            logger.warning(text, describe_end(code), self._sync())

    def _sync(self) -> str:
        return f"python -m launcher.runs sync {self.folder.path}"
