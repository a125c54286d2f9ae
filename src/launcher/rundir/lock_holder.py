"""The holder of a run folder's lock, and whether its process is alive."""

import os
import socket
import time
import uuid
from dataclasses import dataclass, fields
from pathlib import Path

from launcher.process.files import open_file, parse_json, read_file, unless_absent
from launcher.process.process_id import has_open, process_space, process_start
from launcher.rundir.folder import RunFolder, is_copy
from launcher.rundir.provenance import is_restart, slurm_job_id
from launcher.rundir.record_format import iso

# Seconds without a heartbeat after which a holder on another machine counts as dead.
SILENCE = 30.0
ENDED_SILENCE = 15.0
"""The same, in seconds, once SLURM says that the holder's job has ended: three heartbeats. Only a
process of a node that SLURM has lost still runs then."""
ON_RUN = "is on this run"
"""Fragment of the error message for a second process on a run."""


@dataclass(frozen=True)
class Holder:
    """Process that holds a lock.

    `space` identifies the process table that `pid` belongs to (see `process_space`). `folder` is
    the locked folder: a copy of the folder has a copy of the lock.
    """

    token: str
    host: str
    space: str
    pid: int
    started: str | None
    since: str
    slurm_job_id: str | None = None
    folder: str | None = None

    @classmethod
    def current(cls, folder: Path | None = None) -> "Holder":
        """Return this process, with a new token."""
        pid = os.getpid()
        return cls(
            token=uuid.uuid4().hex,
            host=socket.gethostname(),
            space=process_space(),
            pid=pid,
            started=process_start(pid),
            since=iso(time.time()),
            slurm_job_id=slurm_job_id(),
            folder=None if folder is None else os.path.abspath(folder),
        )

    def is_local(self) -> bool:
        """Return whether this process can see the holder's process table."""
        return self.host == socket.gethostname() and self.space == process_space()

    def is_alive(self) -> bool:
        """Return whether a local holder's process still runs. Elsewhere, its heartbeat shows it."""
        started = process_start(self.pid)
        return started is not None and started == self.started

    def __str__(self) -> str:
        job = f", SLURM job {self.slurm_job_id}" if self.slurm_job_id else ""
        return f"process {self.pid} on {self.host}{job}, since {self.since}"


def is_earlier_start(held: Holder) -> bool:
    """Return whether the holder belongs to an earlier launch of this SLURM job.

    SLURM restarts a job once it considers the earlier launch ended. After the loss of a node that
    may be wrong, but then the new launch counts.
    """
    return is_restart() and held.slurm_job_id is not None and held.slurm_job_id == slurm_job_id()


def known_life(held: Holder | None, folder: RunFolder) -> bool | None:
    """Return whether the holder of a run is alive, or None if only its heartbeat can show it."""
    if held is None:
        return None
    if is_copy(folder.path, held.folder):
        return False
    return held.is_alive() if held.is_local() else None


def is_held(folder: RunFolder, silence: float = SILENCE) -> bool:
    """Return whether a live process is on the run, elsewhere by the age of its heartbeat."""
    beat = last_beat(folder.lock_path)
    if beat is None:
        return False
    is_alive = known_life(read_holder(folder.lock_path), folder)
    return time.time() - beat < silence if is_alive is None else is_alive


def is_held_in_job(folder: RunFolder) -> bool:
    """Return the same for a process of the run's SLURM job, whose earlier launch has ended."""
    held = read_holder(folder.lock_path)
    is_over = held is not None and not held.is_local() and is_earlier_start(held)
    return not is_over and is_held(folder)


def find_local_holder(folder: RunFolder) -> Holder | None:
    """Return the live process of this machine that is on the run, to reject early.

    Judging a holder on another machine takes a wait (`RunLock.acquire`).
    """
    held = read_holder(folder.lock_path)
    return held if known_life(held, folder) else None


def signal_holder(folder: RunFolder, held: Holder, signum: int) -> bool:
    """Send a signal to the process that holds a run's lock.

    A lock that somebody else wrote may name any process, but only a process of the run has the
    run's folder open (see `RunLock`).

    Returns:
        False if the process does not work on the run, so it got no signal.

    Raises:
        PermissionError: it is another user's process.
        ProcessLookupError: it has ended.
    """
    if not has_open(held.pid, folder.path):
        return False
    os.kill(held.pid, signum)
    return True


def rejection(folder: RunFolder, held: Holder | None) -> str:
    who = str(held) if held else "another process"
    return (
        f"{folder.key}='{folder.path}': {who}, {ON_RUN}; wait for it or stop it, or"
        f" {folder.another}."
    )


def read_holder(path: Path) -> Holder | None:
    """Read the holder of the lock at `path`, or None if nobody holds it or it cannot be parsed.

    Raises:
        OSError: it cannot be read, at several attempts, so its holder is not known.
    """
    content = unless_absent(lambda: read_file(path))
    try:
        data = parse_json(content or b"")
        return Holder(**{field.name: data[field.name] for field in fields(Holder)})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def last_beat(path: Path) -> float | None:
    """Return the lock's modification time, or None without a lock."""
    return unless_absent(lambda: _modification_time(path))


def _modification_time(path: Path) -> float:
    # A network file system asks its server on opening, not on stat.
    with open_file(path) as file:
        return os.fstat(file.fileno()).st_mtime
