"""Mirrors a run in its trackers: `python -m launcher.trackers.follower RUN_DIR NAME...`.

The run's files are the source of truth. Each tracker reports the last step that it has, and gets
the later lines. So no step is lost or sent twice, whichever process is killed, and when. Training
never waits for any of this.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ConfigError
from launcher.process.process_id import process_start
from launcher.process.signals import HANDLED
from launcher.rundir.folder import FOLLOWER_LOCK, RunFolder
from launcher.rundir.lock import LockLost, RunLock
from launcher.rundir.lock_holder import is_held
from launcher.trackers.base import TrackedRun, Tracker, build_trackers
from launcher.trackers.lines import MetricsReader

FINAL_STATES = ("completed", "failed", "cancelled")
"""States after which the newest line is not written again."""
RUNNING = "running"
SUPERSEDED = "superseded"
INTERVAL = 1.0
"""Seconds between two reads of the run's files."""
PATIENCE = 300.0
"""Seconds after the run's end during which a failing tracker is tried again."""
CALL_TIMEOUT = 1800.0
"""Seconds after that until a call into a tracker is given up. An artifact may be large."""
MAX_WAIT = 60.0
"""Seconds between two attempts, at most."""
MAX_REJECTED = 5
"""Number of rejected names that a message lists."""

logger = logging.getLogger("launcher.trackers")


class FollowerLock(RunLock):
    """The lock of the process that writes to a run's trackers, independent of the run's own."""

    def __init__(self, folder: RunFolder):
        super().__init__(folder)
        self.path = folder.path / FOLLOWER_LOCK


@dataclass
class Follower:
    """Mirrors a run in its trackers.

    Args:
        trackers: trackers by name. Each has its own thread, so that a tracker that hangs does not
            delay the others.
        check: function called before each write. It raises LockLost if another process has taken
            over.
        follow: mirror the run until it ends. With False, bring the trackers up to date once.
    """

    run: TrackedRun
    trackers: dict[str, Tracker]
    check: Callable[[], None] = lambda: None
    follow: bool = True
    interval: float = INTERVAL
    patience: float = PATIENCE
    hangs: float = CALL_TIMEOUT

    def __post_init__(self) -> None:
        self.attempt = self.run.attempt.get("number")
        self.unfinished = dict.fromkeys(self.trackers, "is still being sent to")
        """Reasons why trackers are not up to date, by name."""
        self.steps: dict[str, int] = {}
        """The last step that each tracker has."""
        self._stop = threading.Event()

    def follow_run(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Mirror the run to its end or `until`; return whether every tracker has all of it."""
        threads = [
            threading.Thread(target=self._mirror, args=(name, tracker), name=name, daemon=True)
            for name, tracker in self.trackers.items()
        ]
        for thread in threads:
            thread.start()
        ended_at: float | None = None
        while alive := [thread for thread in threads if thread.is_alive()]:
            if not self.run.folder.path.is_dir():
                self.unfinished = dict.fromkeys(self.unfinished, "the run's folder was removed")
                break
            if until():
                self._stop.set()
            if self._stop.is_set() or self.state() != RUNNING:
                ended_at = ended_at or time.monotonic()
                if time.monotonic() - ended_at > self.patience + self.hangs:
                    break
            alive[0].join(self.interval)
        return not self.unfinished

    def state(self) -> str:
        """Return the run's state.

        It is `killed` if no process is on a run that run.json records as running, and `superseded`
        if another attempt has begun, which has its own follower.
        """
        state = self._read_state()
        if state != RUNNING or is_held(self.run.folder):
            return state
        # The run may have ended in between.
        state = self._read_state()
        return "killed" if state == RUNNING else state

    def _read_state(self) -> str:
        record = self.run.record
        attempts = record.get("attempts") or [{}]
        if self.follow and attempts[-1].get("number") != self.attempt:
            return SUPERSEDED
        return str(record.get("state") or RUNNING)

    def _mirror(self, name: str, tracker: Tracker) -> None:
        tracker.run = self.run
        lines: MetricsReader | None = None
        ended_at: float | None = None
        wait = self.interval
        while True:
            state = self.state()
            is_end = state != RUNNING or not self.follow or self._stop.is_set()
            ended_at = (ended_at or time.monotonic()) if is_end else None
            try:
                lines = lines or self._open(name, tracker)
                self._send(name, tracker, lines, state)
                if is_end:
                    self._close(name, tracker, lines, state)
                    return
                wait = self.interval
            except LockLost as lost:
                self.unfinished[name] = str(lost)
                return
            # A library may exit, as wandb does if its own process was killed.
            except (Exception, SystemExit) as error:
                is_over = ended_at is not None and time.monotonic() - ended_at >= self.patience
                is_last = is_over or self._stop.is_set() or state == SUPERSEDED
                self._report(name, error, is_first=wait == self.interval and not is_last)
                if is_last:
                    return
                lines = None
                wait = min(2 * wait, MAX_WAIT)
            self._stop.wait(wait)

    def _report(self, name: str, error: BaseException, is_first: bool) -> None:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        self.unfinished[name] = reason
        logger.debug("%s", name, exc_info=True)
        if is_first:
            logger.warning("Tracker %s: %s. It is tried again; training continues.", name, reason)

    def _close(self, name: str, tracker: Tracker, lines: MetricsReader, state: str) -> None:
        self.check()
        tracker.close(RUNNING if state == SUPERSEDED else state)
        lines.close()
        del self.unfinished[name]
        logger.debug("%s: closed at step %d (%s)", name, lines.after, state)

    def _open(self, name: str, tracker: Tracker) -> MetricsReader:
        self.check()
        after = tracker.open()
        if tracker.address and name not in self.steps:
            logger.info("Tracker %s: %s", name, tracker.address)
        logger.debug("%s: open, has the steps up to %d", name, after)
        self.steps[name] = after
        return MetricsReader(self.run.folder, after)

    def _send(self, name: str, tracker: Tracker, lines: MetricsReader, state: str) -> None:
        while batch := lines.read(final=state in FINAL_STATES):
            self.check()
            tracker.write(batch)
            self.steps[name] = lines.after


def acquire(lock: FollowerLock, is_over: Callable[[], bool], seconds: float = INTERVAL) -> bool:
    """Take the lock; return False if its holder does not end although this run is over.

    An earlier attempt's follower may hold it, which ends once it sees the new attempt.
    """
    while True:
        try:
            lock.acquire()
            return True
        except ConfigError:
            if is_over():
                return False
            time.sleep(seconds)


def list_unfinished(folder: RunFolder, follower: Follower) -> list[str]:
    """List a message for each tracker that is not up to date."""
    return [
        f"Tracker {name}: {reason}. Complete it with: python -m launcher.runs sync {folder.path}"
        for name, reason in follower.unfinished.items()
    ]


def list_not_sent(trackers: Mapping[str, Tracker]) -> list[str]:
    """A message for each tracker whose service has rejected something."""
    messages = []
    for name, tracker in trackers.items():
        rejected = [f"{key} ({why})" for key, why in tracker.not_sent.items()]
        shown = rejected[:MAX_REJECTED]
        if len(rejected) > MAX_REJECTED:
            shown.append(f"{len(rejected)} in all")
        if rejected:
            text = f"Tracker {name}: not sent, since the service rejects it: {'; '.join(shown)}"
            messages.append(text)
    return messages


def set_up_logging(folder: RunFolder) -> None:
    """Log everything of `launcher` to tracker.log, and warnings to the training process too."""
    file = logging.FileHandler(folder.logs / "tracker.log")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    pipe = logging.StreamHandler(sys.stdout)
    pipe.setFormatter(logging.Formatter("%(levelno)d %(message)s"))
    pipe.setLevel(logging.INFO)
    pipe.addFilter(lambda record: record.name == logger.name)
    for handler in (file, pipe):
        logging.getLogger("launcher").addHandler(handler)
    logging.getLogger("launcher").setLevel(logging.DEBUG)
    # The training process may have ended, and read no more.
    logging.raiseExceptions = False


def main(arguments: Sequence[str] | None = None) -> None:
    for signum in HANDLED:
        # Signals are meant for the run, whose end ends this process.
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    path, *names = sys.argv[1:] if arguments is None else arguments
    folder = RunFolder(Path(path))
    set_up_logging(folder)
    run = TrackedRun(folder)
    lock = FollowerLock(folder)
    trackers = build_trackers(run.config.get("tracker"), names)
    follower = Follower(run, trackers, lock.check)
    started = time.monotonic()
    logger.debug(
        "Follower %d (%s) of attempt %s", os.getpid(), process_start(os.getpid()), follower.attempt
    )

    def is_over() -> bool:
        state = follower.state()
        return state == SUPERSEDED or (state != RUNNING and time.monotonic() - started > PATIENCE)

    if not acquire(lock, is_over):
        return
    try:
        is_left = follower.follow_run() or follower.state() == SUPERSEDED
        unfinished = [] if is_left else list_unfinished(folder, follower)
        for message in [*unfinished, *list_not_sent(trackers)]:
            logger.warning("%s", message)
    finally:
        lock.release()
    sys.stdout.flush()
    # A library's threads and exit handlers may wait for a server.
    os._exit(0)


if __name__ == "__main__":
    main()
