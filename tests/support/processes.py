"""A command and its processes."""

import os
import signal
import threading
from pathlib import Path

from support import runner


class Command:
    """`python -m launcher ...` in its own session, killed at the end of the `with` if it has not
    ended."""

    def __init__(
        self,
        *arguments: str,
        start: tuple[str, ...] = ("-m", "launcher"),
        timeout: float = 400,
        real: bool = False,
    ):
        self.process = runner.start(*start, *arguments, real=real)
        self.pid = self.process.pid
        self.output = ""
        self._watchdog = threading.Timer(timeout, self.kill)

    def __enter__(self) -> "Command":
        self._watchdog.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._watchdog.cancel()
        self.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def kill(self) -> None:
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)

    def read_until(self, text: str) -> None:
        """Read its output up to a line with `text`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if text in line:
                return
        raise AssertionError(f"no {text!r} in:\n{self.output}")

    def wait(self) -> int:
        """Its exit code, all output read."""
        assert self.process.stdout is not None
        self.output += self.process.stdout.read()
        return self.process.wait()

    def left(self) -> list[int]:
        """Its session's processes, without zombies."""
        return of_session(self.pid)

    def ranks(self) -> list[int]:
        """Ids of the ranks, in order: the children of the only child, which forks them, or its
        own."""
        children = children_of(self.pid)
        return children_of(*children) if len(children) == 1 else children


def children_of(parent: int) -> list[int]:
    """The running children of a process, in the order of their start."""
    return sorted(pid for pid, stat in running() if stat[1] == str(parent))


def running() -> list[tuple[int, list[str]]]:
    """Each process but zombies: its id, and its state, parent, group and session from /proc."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            processes.append((int(path.parent.name), path.read_text().rpartition(")")[2].split()))
        except OSError:  # ended meanwhile
            pass
    return [(pid, stat) for pid, stat in processes if stat[0] != "Z"]


def of_session(leader: int) -> list[int]:
    """The running processes of a session."""
    return [pid for pid, stat in running() if stat[3] == str(leader)]
