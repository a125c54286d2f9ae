"""The ranks of one machine, forked from one process that has imported torch.

Signals are blocked here, received one by one, and passed on to the ranks, which save. The ranks
inherit the block, and lift it once their own handlers are installed, so that no signal is lost
while they start. A signal to one rank alone reaches the others as well, since while they start, no
step is near at which they would agree on it. If this process is killed, the kernel sends the ranks
a SIGTERM.

When one rank fails, the others get a SIGTERM, and a SIGKILL after a grace period. A rank that makes
no progress after a signal exits by itself (`launcher.process.deadline`), which counts as a failure.
"""

import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.dispatch.node_process import Child, Children
from launcher.process import signals
from launcher.process.process_id import LISTEN_FD, RANK, WORLD_SIZE

GRACE = 15.0
"""Seconds between SIGTERM and SIGKILL for the other ranks when one has failed."""
AFTER_HANG = 2.0
"""Seconds after a rank's forced exit, since the others already had their grace period."""
HOST = "127.0.0.1"
JOB = "job.yaml"
"""The job description, in the folder that is passed to each rank."""
SIGNAL = "signal-"
"""Prefix of the files there in which a rank reports its first signal."""


@dataclass
class Rank:
    """A process, and how it ended."""

    number: int
    process: Child
    report: dict[str, Any] = field(default_factory=dict)
    """The rank's report (see `launcher.dispatch.rank`), empty if it was killed."""
    ended: float | None = None
    terminated_by_us: bool = False
    """True if we stopped it, since another rank had failed."""

    @property
    def failed(self) -> bool:
        if self.ended is None or self.terminated_by_us:
            return False
        # The kind is None if the rank was killed, or ended by os._exit.
        return self.report.get("kind") in ("failed", "rejected", None)

    @property
    def killed_by(self) -> int:
        """Return the signal that killed it, or 0; NCCL raises SIGABRT when another rank dies."""
        code = self.process.returncode or 0
        if code < 0 and -code != signal.SIGABRT and not self.report:
            return -code
        return 0


class Spawner:
    """Starts the ranks of this machine, and waits for them.

    Args:
        command: of a child, see `Children`.
        count: number of ranks.
        folder: a private folder for the ranks' reports, and for the output of ranks other than 0.
        imports: what the ranks share, see `Children.start`.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        folder: Path,
        imports: Sequence[str] | None = None,
    ):
        self.children = Children(command)
        self.count = count
        self.folder = folder
        self.imports = imports
        self.ranks: list[Rank] = []
        self._kill_at: float | None = None
        self._is_passed_on = False

    def run(self) -> list[Rank]:
        """Start the ranks; return when all have ended."""
        taken = _blockable()
        old = signal.pthread_sigmask(signal.SIG_BLOCK, taken)
        try:
            self._start()
            if signals.first_signal():
                self._pass_on(signals.first_signal())
            while any(rank.ended is None for rank in self.ranks):
                signum = _next_signal(taken, 1.0 if self._kill_at is None else 0.1)
                if signum in signals.HANDLED:
                    self._pass_on(signum)
                elif (missed := signals.first_signal()) and not self._is_passed_on:
                    # The signal was taken by another thread, which does not block it.
                    self._pass_on(missed)
                elif reported := self._find_reported_signal():
                    self._pass_on(reported)
                self._look()
        finally:
            for rank in self.ranks:
                if rank.ended is None:
                    rank.process.kill()
                    rank.process.wait()
            self.children.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, old)
        return self.ranks

    def _start(self) -> None:
        with socket.create_server((HOST, 0)) as listening:
            for number in range(self.count):
                # Rank 0 uses the terminal.
                log = self.folder / f"rank-{number}.out" if number else None
                files = {} if number else {LISTEN_FD: listening.fileno()}
                env = self._environment(number, listening.getsockname()[1])
                arguments = ["rank", str(self.folder)]
                child = self.children.start(arguments, log, env, self.imports, files)
                self.ranks.append(Rank(number, child))

    def _environment(self, rank: int, port: int) -> dict[str, str]:
        return {
            # Otherwise each rank starts a thread per core.
            "OMP_NUM_THREADS": str(max(1, count_cores() // self.count)),
            **os.environ,
            RANK: str(rank),
            "LOCAL_RANK": str(rank),
            WORLD_SIZE: str(self.count),
            "LOCAL_WORLD_SIZE": str(self.count),
            "MASTER_ADDR": HOST,
            "MASTER_PORT": str(port),
        }

    def _find_reported_signal(self) -> int:
        """Return a signal that only a rank has received, and not from here, or 0."""
        if signals.first_signal() or self._kill_at is not None:
            return 0
        return next(
            (int(path.name.removeprefix(SIGNAL)) for path in self.folder.glob(f"{SIGNAL}*")), 0
        )

    def _pass_on(self, signum: int) -> None:
        self._is_passed_on = True
        # The next run of a sweep must not start.
        signals.note(signum)
        for rank in self.ranks:
            # A signal has no effect on a process that has ended.
            rank.process.send_signal(signum)

    def _look(self) -> None:
        """Note which ranks have ended; once one has failed, stop the others."""
        for rank in self.ranks:
            if rank.ended is None and rank.process.poll() is not None:
                rank.ended = time.monotonic()
                rank.report = _read(self.folder / f"rank-{rank.number}.json")
                rank.terminated_by_us = self._kill_at is not None and not rank.report
        left = [rank for rank in self.ranks if rank.ended is None]
        if self._kill_at is None and any(rank.failed for rank in self.ranks):
            hung = any("hung_after" in rank.report for rank in self.ranks)
            self._kill_at = time.monotonic() + (AFTER_HANG if hung else GRACE)
            for rank in left:
                rank.process.terminate()
        elif self._kill_at is not None and time.monotonic() > self._kill_at:
            for rank in left:
                rank.process.kill()

    def cause(self) -> Rank | None:
        """Return the rank that failed first, a killed one before ranks that lost it."""
        failed = [rank for rank in self.ranks if rank.failed]
        return min(
            failed,
            key=lambda rank: (not rank.killed_by, rank.report.get("time", rank.ended)),
            default=None,
        )


def _blockable() -> set[signal.Signals]:
    # SIGCHLD ends the wait when a rank ends.
    return {
        signal.SIGCHLD,
        *(signum for signum in signals.HANDLED if not signals.is_left_ignored(signum)),
    }


def _next_signal(taken: set[signal.Signals], timeout: float) -> int:
    """Wait for the next blocked signal; return 0 if none arrives in time."""
    if hasattr(signal, "sigtimedwait"):
        info = signal.sigtimedwait(taken, timeout)
        return 0 if info is None else info.si_signo
    # macOS has no wait with a time limit.
    time.sleep(min(timeout, 0.1))
    pending = signal.sigpending() & taken
    return signal.sigwait(pending) if pending else 0


def _read(path: Path) -> dict[str, object]:
    try:
        report: dict[str, object] = json.loads(path.read_text())
        return report
    # The rank was killed before or while it wrote.
    except (OSError, ValueError):
        return {}


def count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
