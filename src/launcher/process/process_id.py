"""Identify processes, whose ids are reused and are valid on one machine only."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

RANK = "RANK"
WORLD_SIZE = "WORLD_SIZE"
PARENT = "LAUNCHER_PARENT"
"""The environment variable with the process that a child ends with."""
LISTEN_FD = "LAUNCHER_LISTEN_FD"
"""The environment variable with rank 0's listening socket, whose port no other process takes."""
RANK_VARIABLES = (
    *(RANK, "LOCAL_RANK", WORLD_SIZE, "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_STEP_NUM_TASKS", PARENT, LISTEN_FD, "LAUNCHER_MEETING"),
)
"""Environment variables from which a process knows that it is one of several ranks."""


def own_rank() -> int:
    """Return the rank of this process by its environment, before torch knows it."""
    return int(os.environ.get(RANK, 0))


def process_start(pid: int) -> str | None:
    """Return a start time, which distinguishes a process from a later one of its id.

    None: there is no such process, or it is a zombie.
    """
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        # The name in brackets may contain anything, including ") ".
        state, *rest = stat.rpartition(")")[2].split()
        return None if state in "ZX" else rest[18]
    try:
        done = subprocess.run(
            ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError:
        return None
    state, _, started = done.stdout.strip().partition(" ")
    if not started or state.startswith("Z"):
        return None
    return started.strip()


def has_open(pid: int, folder: Path) -> bool:
    """Return whether process `pid` has a folder open. Only Linux shows it: elsewhere, True.

    Raises:
        PermissionError: it is another user's process.
        ProcessLookupError: there is no such process.
    """
    if sys.platform != "linux":
        return True
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    for descriptor in descriptors:
        # The descriptor may be closed in the meantime.
        with suppress(OSError):
            if descriptor.samefile(folder):
                return True
    return False


def process_space() -> str:
    """Return the boot and the PID namespace, since several tables may share a host name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return sys.platform
