"""Read the newest checkpoint into the page cache while a process imports and builds the model.

Checkpoints are written past the page cache, so a resume would otherwise wait for the disk, or the
network, once all else is done.
"""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.checkpoint.chunks import READ_BYTES
from launcher.process.files import open_file
from launcher.process.process_id import WORLD_SIZE, own_rank
from launcher.rundir.folder import RunFolder, step_name

MIN_BYTES = 32 << 20
"""Bytes that are read faster than they are worth a thread."""
LAST_READ = 10.0
"""Seconds that the last read may take."""
_cached: dict[Path, int] = {}
"""Bytes of each file that this process has read, where a second context continues."""


@contextmanager
def read_ahead(folder: RunFolder) -> Iterator[None]:
    """Read this rank's shard of the newest checkpoint, in a thread that ends with the context."""
    is_over = threading.Event()
    # The thread is a daemon, since a hanging disk must not keep the process from exiting.
    thread = threading.Thread(
        target=_read, args=(folder, is_over), name="checkpoint-read-ahead", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        # A disk that hangs is met again by the restore, which a forced exit can end.
        thread.join(LAST_READ)


def _read(folder: RunFolder, is_over: threading.Event) -> None:
    try:
        shard = _shard(folder)
        if shard is None:
            return
        size = min(os.stat(shard).st_size, _spare_memory())
        start = _cached.get(shard, 0)
        if size - start < MIN_BYTES:
            return
        buffer = bytearray(READ_BYTES)
        with open_file(shard, follow=True) as file:
            file.seek(start)
            while not is_over.is_set() and file.tell() < size and file.readinto(buffer):
                _cached[shard] = file.tell()
    # The restore reads the file again, and reports what is wrong with it.
    except OSError:
        return


def _shard(folder: RunFolder) -> Path | None:
    """Return the file that this rank reads. If all ranks need it, one rank of a node reads it."""
    shards = sorted((folder.checkpoints / step_name(folder.newest_step())).glob("shard-*"))
    is_own = len(shards) == int(os.environ.get(WORLD_SIZE, 1))
    number = own_rank() if is_own else int(os.environ.get("LOCAL_RANK", 0))
    return shards[number] if number < len(shards) else None


def _spare_memory() -> int:
    """Return half of the available memory, divided by the ranks of the node.

    A larger file would evict its own first bytes.
    """
    found = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    available = int(found[1]) * 1024 if found else 0
    return available // 2 // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
