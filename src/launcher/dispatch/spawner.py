"""The ranks of one machine, as child processes of the command.

Signals: the handled ones are blocked here and taken one by one, each is passed on to the ranks, and then we wait for
as long as their saving takes. The ranks inherit the block and lift it when their own handlers stand, so a signal that
comes while they start is kept for them. Should this process be killed, the kernel sends them a SIGTERM.

Failure: the first rank to end badly ends all. The others get a SIGTERM, and a SIGKILL after a grace. Of a signal after
which nothing goes on each rank takes care itself (`launcher.run.deadline`), and is such a failure then.
"""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.run import signals

GRACE = 15.0
"""Seconds between SIGTERM and SIGKILL for the ranks that are left when one has failed."""
AFTER_HANG = 2.0
"""The same, where one has given up the wait for the others after a signal: they have had their time."""
HOST = "127.0.0.1"
JOB = "job.yaml"
"""In the folder that is passed to each rank: what it is to do."""


@dataclass
class Rank:
    """A child, and what became of it."""

    number: int
    process: subprocess.Popen[bytes]
    told: dict[str, Any] = field(default_factory=dict)
    """What it wrote of its end (see `launcher.dispatch.rank`); empty if it died without a word."""
    ended: float | None = None
    put_down: bool = False
    """We ended it, since another had failed."""

    @property
    def failed(self) -> bool:
        if self.ended is None or self.put_down:
            return False
        return self.told.get("kind") in ("failed", "refused") or (not self.told and self.process.returncode != 0)

    @property
    def fell(self) -> int:
        """The signal that killed it, 0 for none. SIGABRT does not count: it is how NCCL reports another's death."""
        code = self.process.returncode or 0
        return -code if code < 0 and -code != signal.SIGABRT and not self.told else 0


class Spawner:
    """
    Args:
        command: run for each rank, with the folder as its last argument.
        count: ranks.
        folder: private; ranks write there what became of them, and ranks other than 0 what they print.
    """

    def __init__(self, command: Sequence[str], count: int, folder: Path):
        self.command, self.count, self.folder = command, count, folder
        self.ranks: list[Rank] = []
        self._kill_at: float | None = None

    def run(self) -> list[Rank]:
        """Start the ranks, and return when all have ended."""
        taken = _blockable()
        old = signal.pthread_sigmask(signal.SIG_BLOCK, taken)
        try:
            self._start()
            if signals.received():
                self._pass_on(signals.received())
            while any(rank.ended is None for rank in self.ranks):
                signum = _next_signal(taken, 1.0 if self._kill_at is None else 0.1)
                if signum in signals.HANDLED:
                    signals.note(signum)  # for what comes after: the next run of a sweep
                    self._pass_on(signum)
                self._look()
        finally:
            for rank in self.ranks:
                if rank.ended is None:
                    rank.process.kill()
                    rank.process.wait()
            signal.pthread_sigmask(signal.SIG_SETMASK, old)
        return self.ranks

    def _start(self) -> None:
        with socket.create_server((HOST, 0)) as listening:
            for number in range(self.count):
                command, env = [*self.command, str(self.folder)], self._environment(number, listening)
                if number == 0:  # it has the screen, and the keyboard
                    process = subprocess.Popen(command, env=env, pass_fds=[listening.fileno()])
                else:
                    with open(self.folder / f"rank-{number}.out", "wb") as output:
                        process = subprocess.Popen(
                            command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                        )
                self.ranks.append(Rank(number, process))

    def _environment(self, rank: int, listening: socket.socket) -> dict[str, str]:
        env = {
            "OMP_NUM_THREADS": str(max(1, _cores() // self.count)),  # else each rank starts a thread for every core
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.count),
            "LOCAL_WORLD_SIZE": str(self.count),
            "MASTER_ADDR": HOST,
            "MASTER_PORT": str(listening.getsockname()[1]),
            "LAUNCHER_PARENT": str(os.getpid()),
        }
        if rank == 0:
            env["LAUNCHER_LISTEN_FD"] = str(listening.fileno())
        return env

    def _pass_on(self, signum: int) -> None:
        for rank in self.ranks:
            rank.process.send_signal(signum)  # a process that has ended is left alone

    def _look(self) -> None:
        """Note who has ended; once one has failed, end the others."""
        for rank in self.ranks:
            if rank.ended is None and rank.process.poll() is not None:
                rank.ended = time.monotonic()
                rank.told = _read(self.folder / f"rank-{rank.number}.json")
                rank.put_down = self._kill_at is not None and not rank.told
        left = [rank for rank in self.ranks if rank.ended is None]
        if self._kill_at is None and any(rank.failed for rank in self.ranks):
            hung = any("hung_after" in rank.told for rank in self.ranks)
            self._kill_at = time.monotonic() + (AFTER_HANG if hung else GRACE)
            for rank in left:
                rank.process.terminate()
        elif self._kill_at is not None and time.monotonic() > self._kill_at:
            for rank in left:
                rank.process.kill()

    def cause(self) -> Rank | None:
        """The rank that failed first. One that was killed did so before those that lost their connection to it."""
        failed = [rank for rank in self.ranks if rank.failed]
        return min(failed, key=lambda rank: (not rank.fell, rank.told.get("time", rank.ended)), default=None)


def _blockable() -> set[signal.Signals]:
    return {signal.SIGCHLD, *(signum for signum in signals.HANDLED if not signals.is_left_ignored(signum))}


def _next_signal(taken: set[signal.Signals], timeout: float) -> int:
    """The next blocked signal, 0 if none comes in time."""
    if hasattr(signal, "sigtimedwait"):
        info = signal.sigtimedwait(taken, timeout)
        return 0 if info is None else info.si_signo
    time.sleep(min(timeout, 0.1))  # macOS cannot wait for one with a time limit
    pending = signal.sigpending() & taken
    return signal.sigwait(pending) if pending else 0


def _read(path: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(path.read_text())
        return told
    except (OSError, ValueError):  # it died before, or while it wrote
        return {}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
