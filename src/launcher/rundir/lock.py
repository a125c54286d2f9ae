"""The lock of a run folder: one live process at a time works on a run.

The lock is a file that names its holder. It needs neither flock nor a common clock, so it works on
network file systems: an atomic hard link creates it complete, and its holder touches it every few
seconds.

A holder on this machine is alive if the kernel has a process with its id *and* start time (ids are
reused). On another machine, only its heartbeat shows that: the holder is alive if the lock's time
changes while we watch, and dead if it does not change for `silence` seconds. Two readings of one
file server's clock are compared, never two machines' clocks.

filelock's SoftFileLease (4.2) is no replacement: where two PID namespaces share a host name
(containers), it takes over a live holder's lock. It also waits for the whole lease to reject a live
holder elsewhere, or to replace a zombie here.
"""

import errno
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from launcher.errors import ConfigError
from launcher.process.files import patiently
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock_holder import (
    SILENCE,
    Holder,
    is_earlier_start,
    known_life,
    last_beat,
    read_holder,
    rejection,
)
from launcher.rundir.run_on_disk import RunOnDisk

# Seconds between two heartbeats.
HEARTBEAT_SECONDS = 5.0

WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
"""Errors of a file system that has no hard links."""

logger = logging.getLogger(__name__)


class LockLost(Exception):
    """Another process has the run, its folder is gone, or this process has released it."""


class RunLock:
    """The lock of one run folder, for rank 0 only: `with`, or `acquire` and `release`.

    Args:
        beat: seconds between two heartbeats.
        silence: seconds without a heartbeat after which a holder on another machine is dead.
        on_lost: called with a message, in any thread, once this process must no longer write.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        beat: float = HEARTBEAT_SECONDS,
        silence: float = SILENCE,
        sleep: Callable[[float], None] = time.sleep,
        on_lost: Callable[[str], None] | None = None,
    ):
        self.folder = folder
        self.path = folder.lock_path
        self.beat = beat
        self.silence = silence
        self.sleep = sleep
        self.on_lost = on_lost
        # The holder is this process, or None while it does not hold the lock.
        self.holder: Holder | None = None
        self._attempts_before = 0
        self._has_record = False  # run.json was seen while this process held the lock
        self._is_released = False
        self._repair = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "RunLock":
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Take the lock, also a dead holder's; that takes up to `silence` seconds elsewhere."""
        me = Holder.current(self.folder.path)
        with self.folder.explain_write_errors():
            self.folder.path.mkdir(parents=True, exist_ok=True)
            if self.path.is_dir():
                raise ConfigError(
                    f"{self.folder.key}='{self.folder.path}': {self.path.name} is a folder; move it"
                    " away."
                )
            with self._lock_file(me) as temporary:
                while not place(temporary, self.path) and not self._replace_dead(temporary):
                    pass
            # An open folder shows others that this process works on the run (see `signal_holder`).
            self._descriptor = os.open(self.folder.path, os.O_RDONLY)
        # Read after the lock is taken: any attempt that appears later is another process's.
        self._attempts_before = len(RunOnDisk.read(self.folder).attempts)
        self._sweep()
        self.holder = me
        self._is_released = False
        self._stop.clear()
        self._thread = threading.Thread(target=self._keep_beating, name="run-lock", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Release the lock, if this process has it and was not forked from the holder."""
        if self.holder is None or self.holder.pid != os.getpid():
            return
        # The thread ends first, since it would put the removed lock back.
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        # A check of another thread would put it back too.
        with self._repair:
            try:
                if self.is_held():
                    patiently(lambda: self.path.unlink(missing_ok=True))
            # The next process takes over the lock of a process that has ended.
            except OSError as error:
                logger.warning("%s could not be removed: %s.", self.path, error)
            os.close(self._descriptor)
            self._is_released = True
            self.holder = None

    def is_held(self) -> bool:
        """Return whether the lock file still names this process.

        Raises:
            OSError: it cannot be read, at several attempts. The lock may be held or lost.
        """
        # Another thread may release the lock meanwhile.
        if (holder := self.holder) is None:
            return False
        current = read_holder(self.path)
        return current is not None and current.token == holder.token

    def check(self) -> None:
        """Check, before every write that commits something, that the run is still this process's.

        A process that was suspended, or cut off from the file system, looks dead to the others: one
        of them may have taken over the run, and even completed it. A lock file that was merely
        removed is put back. Before the lock is acquired, nothing is checked.

        Raises:
            LockLost: the run is no longer this process's, and `on_lost` has returned. Also if this
                process has released the lock; `on_lost` is not called then.
            OSError: the holder cannot be read. Then nothing may be written for now.
        """
        holder = self.holder
        if holder is None:
            self._check_not_released()
            return
        has_record = os.path.lexists(self.folder.record_path)
        was_removed = self._has_record and not has_record
        self._has_record = has_record
        if self.is_held():
            return
        # Our other thread may be putting the lock back: until it is done, the file may be missing
        # or, without hard links, incomplete.
        with self._repair:
            self._check_not_released()
            if self.is_held() or (
                not was_removed and not os.path.lexists(self.path) and self._put_back(holder)
            ):
                return
        cause = (
            f"this process ({holder}) has lost the run's lock to"
            f" {read_holder(self.path) or 'another process'}"
        )
        if was_removed and not os.path.lexists(self.path):
            cause = f"the run's folder was removed while this process ({holder}) was on it"
        reason = (
            f"{self.folder.key}='{self.folder.path}': {cause}; it stops, and writes nothing more."
        )
        if self.on_lost is not None:
            self.on_lost(reason)
        raise LockLost(reason)

    def _check_not_released(self) -> None:
        if self._is_released:
            raise LockLost(f"{self.folder.key}='{self.folder.path}': its lock is released.")

    def _put_back(self, holder: Holder) -> bool:
        """Create a removed lock file again, unless another process has begun an attempt."""
        # Attempts that began after this process acquired the lock come last.
        attempts = RunOnDisk.read(self.folder).attempts[self._attempts_before :]
        if any((each["host"], each["pid"]) != (holder.host, holder.pid) for each in attempts):
            return False
        try:
            with self._lock_file(holder) as temporary:
                if not place(temporary, self.path):
                    return False  # another process has taken it
        except FileNotFoundError:  # the run's folder was removed
            return False
        logger.warning("%s was removed; this process put it back.", self.path)
        return True

    @contextmanager
    def _lock_file(self, holder: Holder) -> Iterator[Path]:
        """Yield a complete lock file under a hidden name, to be linked."""
        temporary = self.path.with_name(f".{self.path.name}.{holder.token}")
        try:
            temporary.write_text(json.dumps(asdict(holder), indent=2) + "\n")
            yield temporary
        finally:
            with suppress(OSError):
                temporary.unlink()

    def _keep_beating(self) -> None:
        while not self._stop.wait(self.beat):
            try:
                self.check()
                # Without a time, the file server's own clock counts.
                os.utime(self.path)
            except LockLost as lost:
                logger.error("%s", lost)
                return
            except OSError as error:
                logger.warning("%s: no heartbeat: %s.", self.path, error)

    def _is_alive(self, held: Holder | None, fresh: Path) -> bool:
        """Return whether the holder is alive; `fresh` has the file server's current time."""
        is_alive = known_life(held, self.folder)
        if is_alive is not None:
            return is_alive
        if held is not None and is_earlier_start(held):
            return False
        first = last_beat(self.path)
        now = last_beat(fresh)
        if first is None or (now is not None and now - first > 10 * self.silence):
            return False
        waited = 0.0
        pause = min(1.0, self.silence / 10)
        while waited < self.silence:
            self.sleep(pause)
            waited += pause
            beat = last_beat(self.path)
            if beat != first:
                return beat is not None  # None: released
        return False

    def _replace_dead(self, temporary: Path) -> bool:
        """Replace a dead holder's lock; return False if it must be examined again."""
        held = read_holder(self.path)
        if held is None and not os.path.lexists(self.path):
            # The lock was released in the meantime.
            return False
        if self._is_alive(held, temporary):
            raise ConfigError(rejection(self.folder, read_holder(self.path) or held))
        beat = last_beat(self.path)
        now = last_beat(temporary)
        if not self._take_over(held, temporary):
            self.sleep(0.05)
            return False
        logger.info("Took over the lock of %s, which is gone.", held or "an unknown process")
        if held is not None and is_earlier_start(held) and (now or 0) - (beat or 0) < 2 * self.beat:
            # The holder may be alive. It ends once it finds its lock gone.
            self.sleep(2 * self.beat)
        return True

    def _take_over(self, dead: Holder | None, temporary: Path) -> bool:
        """Replace a dead holder's lock by the file `temporary`; return False if another was faster.

        Only one process at a time may do so. Otherwise two that saw the same dead holder would both
        win, since the slower one would replace the faster one's new lock. The right to do so is
        another such file, the claim. A process keeps its claim for two system calls only, so a
        claim that stays belongs to a process that was killed between them.
        """
        claim = self.path.with_name(f".{self.path.name}.claim")
        if not place(temporary, claim):
            if not self._is_claimed(claim):
                claim.unlink(missing_ok=True)
            return False
        # A dangling link exists too.
        if os.path.lexists(self.path) and read_holder(self.path) == dead:
            os.replace(claim, self.path)
            return True
        claim.unlink(missing_ok=True)
        return False

    def _is_claimed(self, claim: Path) -> bool:
        claimant = read_holder(claim)
        before = last_beat(claim)
        if claimant is not None and claimant.is_local():
            return claimant.is_alive()
        self.sleep(min(1.0, self.silence))
        return before is None or last_beat(claim) != before

    def _sweep(self) -> None:
        """Remove the temporary files of processes that were killed while waiting for the lock."""
        for path in self.path.parent.glob(f".{self.path.name}.*"):
            left = read_holder(path)
            written = last_beat(path)
            if left is None:
                age = 0.0 if written is None else (last_beat(self.path) or 0) - written
                is_left = age > 10 * self.silence
            else:
                is_left = left.is_local() and not left.is_alive()
            if is_left:
                path.unlink(missing_ok=True)


def place(source: Path, target: Path) -> bool:
    """Create `target` with the content of `source`, atomically; False if it exists already."""
    try:
        os.link(source, target)
        return True
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in WITHOUT_LINKS:
            raise
    # A file system without hard links: still exclusive, but the file is incomplete for a moment.
    try:
        with open(target, "x") as file:
            file.write(source.read_text())
        return True
    except FileExistsError:
        return False
