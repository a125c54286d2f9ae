"""Large files are written past the page cache: allocating, filling and evicting its pages would slow the training that
continues during a save. One chunk is written while the next is filled."""

import errno
import fcntl
import mmap
import os
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

CHUNK = 8 << 20
READ = 4 << 20
"""Bytes that are read and hashed at a time, while they are in the processor's cache."""
DIRECT = getattr(os, "O_DIRECT", 0)


class ChunkWriter:
    """Writes a new file. On leaving, the kernel has all bytes; the caller does the fsync.

    Full chunks are written with O_DIRECT, from page-aligned memory. The rest, small files, and file systems without
    O_DIRECT use ordinary writes.

    Args:
        size: the approximate number of bytes.
    """

    def __init__(self, fd: int, size: int):
        self.fd, self.is_small = fd, size < 2 * CHUNK
        self._flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        self._todo: SimpleQueue[mmap.mmap | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._is_pending = False
        self._buffers: list[tuple[mmap.mmap, Any]] = []
        self._filled = 0

    def __enter__(self) -> "ChunkWriter":
        if not self.is_small:
            import numpy as np  # its copies release the GIL; imported late, since small files do not need it

            maps = [mmap.mmap(-1, CHUNK) for _ in range(2)]
            self._buffers = [(memory, np.frombuffer(memory, np.uint8)) for memory in maps]
            self._set_flags(self._flags | DIRECT)
            # A daemon: a hanging disk must not keep the process from exiting.
            threading.Thread(target=self._work, name="checkpoint-disk", daemon=True).start()
        return self

    def write(self, view: memoryview) -> None:
        """
        Raises:
            OSError: this write failed, or the previous one. On leaving, the last one is reported.
        """
        if self.is_small:
            write_all(self.fd, view)
            return
        import numpy as np

        source = np.frombuffer(view, np.uint8)
        while len(source):
            count = min(len(source), CHUNK - self._filled)
            np.copyto(self._buffers[0][1][self._filled : self._filled + count], source[:count])
            self._filled += count
            source = source[count:]
            if self._filled == CHUNK:
                self._hand_over()

    def _hand_over(self) -> None:
        self._wait()
        self._is_pending = True
        self._todo.put(self._buffers[0][0])
        self._buffers.reverse()
        self._filled = 0

    def _work(self) -> None:
        while (chunk := self._todo.get()) is not None:
            try:
                self._write_chunk(chunk)
                self._done.put(None)
            except BaseException as error:  # of any kind: the waiting thread raises it
                self._done.put(error)

    def _write_chunk(self, chunk: mmap.mmap) -> None:
        view = memoryview(chunk)
        while view:
            try:
                view = view[os.write(self.fd, view) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not fcntl.fcntl(self.fd, fcntl.F_GETFL) & DIRECT:
                    raise
                self._set_flags(self._flags)  # not supported by this file system, or not after a short write

    def _wait(self) -> None:
        if self._is_pending:
            self._is_pending = False
            if (error := self._done.get()) is not None:
                raise error

    def _set_flags(self, flags: int) -> None:
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETFL, flags)
        except OSError:
            if flags == self._flags:
                raise

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if self.is_small:
            return
        try:
            self._wait()
            if kind is None:
                self._set_flags(self._flags)
                write_all(self.fd, memoryview(self._buffers[0][0])[: self._filled])
        finally:
            self._todo.put(None)


def write_all(fd: int, view: memoryview) -> None:
    while view:
        view = view[os.write(fd, view) :]


def read_bytes(path: Path, start: int, view: memoryview, digest: Any = None) -> None:
    """Fill `view` with the file's bytes from `start` on.

    Args:
        digest: updated with these bytes.
    Raises:
        ValueError: the file has fewer bytes.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        while view:
            count = os.preadv(fd, [view[:READ]], start)
            if count <= 0:
                raise ValueError(f"{path} ends too early.")
            if digest is not None:
                digest.update(view[:count])
            view, start = view[count:], start + count
    finally:
        os.close(fd)
