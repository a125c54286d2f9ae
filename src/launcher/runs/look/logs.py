"""Print a run's log: of rank 0, of another rank, or of its SLURM job."""

import argparse
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser
from launcher.process.files import open_file
from launcher.process.printable import printable
from launcher.rundir.lock_holder import is_held
from launcher.runs.find_runs import RUN_HELP, find_run
from launcher.runs.slurm_jobs import join_queue
from launcher.runs.stored_run import StoredRun
from launcher.slurm.scheduler import ENDING, queue
from launcher.slurm.submission import FROZEN

# Seconds between two reads of a growing file.
PAUSE = 0.3
QUEUE_PAUSE = 5.0
"""Seconds between two looks into SLURM's queue."""


def add_arguments(parser: Parser) -> None:
    parser.argument("run", "RUN", RUN_HELP)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="keep printing until the run ends"
    )
    parser.argument("-n --lines", "N", "only the last N lines", type=int)
    parser.argument(
        "--rank", "R", "the rank whose log is printed (default: 0)", type=int, default=0
    )
    parser.flag("--slurm", "the output of the newest SLURM job, srun's messages included")


def run(arguments: argparse.Namespace) -> int:
    if arguments.lines is not None and arguments.lines < 0:
        raise ConfigError(f"--lines={arguments.lines}: should be 0 or more.")
    wanted = find_run(arguments.run, arguments.outputs)
    watch = RunWatch(wanted.folder.path)
    # The run is queued.
    while arguments.follow and not any(wanted.folder.logs.glob("*.log")) and not watch.has_ended():
        time.sleep(PAUSE)
    path = log_path(wanted, arguments.rank, arguments.slurm)
    watch.is_job_log = path != wanted.folder.log_path(arguments.rank)
    position = 0 if arguments.lines is None else last_lines(path, arguments.lines)
    for text in growth(path, position, watch.has_ended if arguments.follow else lambda: True):
        emit(text)
    return 0


def log_path(run: StoredRun, rank: int, slurm: bool = False) -> Path:
    """Return the log of a rank, or before it exists the SLURM job's, or the file SLURM wrote."""
    path = run.folder.log_path(rank)
    if path.is_file() and not slurm:
        return path
    jobs = sorted(run.folder.logs.glob("slurm-*.log"), key=lambda log: log.stat().st_mtime)
    if not jobs and run.note is not None and run.note.script:
        parent = Path(run.note.script).parent
        jobs = [*parent.glob(f"{run.job_id}.out")]
    if jobs and (slurm or rank == 0):
        return jobs[-1]
    names = sorted(log.name for log in run.folder.logs.glob("*.log"))
    if not names and run.recorded_state == "queued":
        raise ConfigError(
            f"{run.label}: has no log yet, since it waits in the queue; -f waits for it."
        )
    end = last_end(run).rstrip(".")
    none = f"no logs: its last attempt {end}" if end else "no logs"
    option = "--slurm" if slurm else f"--rank={rank}"
    raise ConfigError(f"{option}: {run.label} has no such log; it has {', '.join(names) or none}.")


def last_end(run: StoredRun) -> str:
    """Describe how the newest attempt ended, if its reason is known, or return ""."""
    last = run.attempt
    if last.get("reason"):
        return f"{last.get('outcome')}, {last['reason']}"
    return ""


@dataclass
class RunWatch:
    """Watches for the end of a run: no process holds it, and SLURM's queue has no job of it.

    A completed run's own log is complete once its process has left it. Its job's log (`is_job_log`)
    is not complete then, since srun forwards output a moment later.
    """

    path: Path
    is_job_log: bool = False
    _asked: float = float("-inf")
    _in_queue: bool = False

    def has_ended(self) -> bool:
        run = StoredRun.read(self.path)
        if run.state == "running" or is_held(run.folder):
            return False
        is_completed = run.state == "completed"
        if is_completed and not self.is_job_log:
            return True
        if run.had_job and time.monotonic() - self._asked > QUEUE_PAUSE:
            join_queue([run], queue([self.path / FROZEN]))
            is_over = run.job is None or (is_completed and run.job.state == ENDING)
            self._asked = time.monotonic()
            self._in_queue = not is_over
        return not self._in_queue


def last_lines(path: Path, lines: int) -> int:
    """Return the position at which the last `lines` lines of a file begin."""
    with open_file(path) as file:
        last = deque(file, lines)
        return file.tell() - sum(map(len, last))


def growth(
    path: Path,
    position: int,
    has_ended: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[bytes]:
    """Yield the bytes after `position`, until nothing was appended after `has_ended()` is true."""
    while True:
        # The end is checked before reading, so that the last bytes are still read.
        ended = has_ended()
        has_grown = False
        with suppress(FileNotFoundError), open_file(path) as file:
            # The file may have been rewritten.
            is_shorter = os.fstat(file.fileno()).st_size < position
            file.seek(0 if is_shorter else position)
            # In complete lines no character is divided.
            while lines := file.readlines(1 << 16):
                has_grown = True
                yield b"".join(lines)
            position = file.tell()
        if not has_grown:
            if ended:
                return
            sleep(PAUSE)


def emit(text: bytes) -> None:
    """Print bytes of a log, whatever its encoding, with its control characters as text."""
    line = text.decode(errors="surrogateescape")
    shown = printable(line, colors=sys.stdout.isatty(), returns=True)
    sys.stdout.buffer.write(shown.encode(errors="surrogateescape"))
    sys.stdout.buffer.flush()
