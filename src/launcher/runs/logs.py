"""What a run wrote: the log of rank 0, of another rank, or of its SLURM job."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.errors import ConfigError
from launcher.runs.find import Run, ask_queue, find_run

PAUSE = 0.3  # seconds between two looks at a growing file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="an id, the beginning of one, a name, name/id, or a folder")
    parser.add_argument("-f", "--follow", action="store_true", help="go on printing until the run ends")
    parser.add_argument("-n", "--lines", type=int, metavar="N", help="the last N lines only")
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="the rank whose log is meant (default: 0)")
    parser.add_argument("--slurm", action="store_true", help="all that the newest SLURM job printed, srun's words too")


def run(arguments: argparse.Namespace) -> int:
    found = find_run(arguments.run, arguments.outputs)
    wait = Patience(found.folder.path)
    while arguments.follow and not any(found.folder.logs.glob("*.log")) and not wait.over():  # queued
        time.sleep(PAUSE)
    path = log_path(found, arguments.rank, arguments.slurm)
    if arguments.lines is not None and arguments.lines < 0:
        raise ConfigError(f"--lines={arguments.lines}: should be 0 or more.")
    position = 0 if arguments.lines is None else last_lines(path, arguments.lines)
    position += copy(path, position)
    if arguments.follow:
        for text in growth(path, position, wait.over):
            emit(text)
    return 0


def log_path(run: Run, rank: int, slurm: bool = False) -> Path:
    """The log that is meant: where a run has begun none of its own, its SLURM job's. Raises ConfigError naming the logs
    that there are."""
    path = run.folder.log_path(rank)
    if path.is_file() and not slurm:
        return path
    jobs = sorted(run.folder.logs.glob("slurm-*.log"), key=lambda one: one.stat().st_mtime)
    if jobs and (slurm or rank == 0):
        return jobs[-1]
    there = sorted(entry.name for entry in run.folder.logs.glob("*.log"))
    has = f"it has {', '.join(there)}" if there else "it has no logs"
    if slurm:
        raise ConfigError(f"--slurm: {run.name}/{run.id} has no log of a SLURM job; {has}.")
    raise ConfigError(f"--rank={rank}: {run.name}/{run.id} has no {path.name}; {has}.")


class Patience:
    """Whether a run is over: nobody is on it, and no job of it waits in SLURM's queue, which is asked now and then."""

    def __init__(self, path: Path, pause: float = 10.0):
        self.path, self.pause = path, pause
        self._asked = float("-inf")
        self._in_queue = False

    def over(self) -> bool:
        run = Run.read(self.path)
        if run.state == "completed":
            return True
        if run.state == "running":
            return False
        if run.job_id and time.monotonic() - self._asked > self.pause:
            ask_queue([run])
            self._asked, self._in_queue = time.monotonic(), run.job is not None
        return not self._in_queue


def last_lines(path: Path, lines: int, block: int = 1 << 16) -> int:
    """Where the last `lines` lines of a file begin, found from its end."""
    with open(path, "rb") as file:
        position = end = file.seek(0, os.SEEK_END)
        text = b""
        # The newline at the very end closes the last line and begins none.
        while position and text[:-1].count(b"\n") < lines:
            position = max(0, position - block)
            file.seek(position)
            text = file.read(end - position)
    if not text or not lines:
        return end
    kept = text[:-1].split(b"\n")[-lines:]
    return end - sum(len(line) + 1 for line in kept)


def copy(path: Path, position: int) -> int:
    """Print a file from `position` to its end; returns the number of bytes."""
    with open(path, "rb") as file:
        start = file.seek(position)
        while text := file.read(1 << 16):
            emit(text)
        return file.tell() - start


def growth(
    path: Path, position: int, over: Callable[[], bool], sleep: Callable[[float], None] = time.sleep
) -> Iterator[bytes]:
    """What is appended to a file after `position`, until `over()` and nothing more has come."""
    while True:
        ended = over()  # asked first: what was written before the end is read after it
        try:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_size < position:
                    position = 0  # begun anew
                file.seek(position)
                text = file.read()
        except FileNotFoundError:
            text = b""
        position += len(text)
        if text:
            yield text
        elif ended:
            return
        else:
            sleep(PAUSE)


def emit(text: bytes) -> None:
    """Bytes as they are: a log may hold anything."""
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
