"""Child processes: how they start, get signals, and how their end is reported."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.process import signals
from launcher.process.files import open_file
from launcher.process.process_id import PARENT
from launcher.process.waits import wait_for_process

TAIL_BYTES = 1 << 16
"""Bytes at the end of a log that are searched for its last lines."""


def start_child(
    command: Sequence[str],
    log: Path | None = None,
    env: Mapping[str, str] = os.environ,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start a process that ends with this one, see `launcher.process.parent`.

    A signal that comes before it has its handlers waits until then.

    Args:
        command: its arguments.
        log: gets its output. Default None: it has the streams of this process.
        env: its environment.
        **options: of `subprocess.Popen`.
    """
    env = {**env, PARENT: str(os.getpid())}
    with signals.block():
        if log is None:
            return subprocess.Popen(command, env=env, **options)
        with open(log, "ab") as output:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            return subprocess.Popen(command, env=env, **{**streams, **options})


def run_to_end(command: Sequence[str]) -> int:
    """Run a process, which gets our SIGINT and SIGTERM and unlimited time to save.

    Returns:
        Its exit code as a shell reports it.
    """
    process = subprocess.Popen(command)
    before = {
        signum: signal.signal(signum, lambda received, _: process.send_signal(received))
        for signum in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        code = wait_for_process(process)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    return 128 - code if code < 0 else code


def describe_end(code: int) -> str:
    """Return how a process ended: its exit code, or the signal that killed it."""
    if code < 0:
        return f"was killed by signal {-code}"
    return f"ended with exit code {code}"


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines of a log, or none if it cannot be read."""
    try:
        with open_file(log) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []
