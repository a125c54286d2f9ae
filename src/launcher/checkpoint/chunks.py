"""Large files bypass the page cache: allocating, filling and evicting its pages would slow a start, or the training
that continues during a save. One chunk is written while the next is filled; several are read at once."""

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
"""Bytes that each reading thread reads, hashes and copies at a time."""
DIRECT = getattr(os, "O_DIRECT", 0)
PAGE = 4096


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


class ChunkReader:
    """Reads parts of files, from any number of threads."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def read(self, path: Path, start: int, view: memoryview, digest: Any = None) -> None:
        """Fill `view` with the file's bytes from `start` on.

        Args:
            digest: updated with these bytes.
        Raises:
            ValueError: the file has fewer bytes.
        """
        direct = DIRECT if len(view) > READ // 4 else 0
        try:
            fd = os.open(path, os.O_RDONLY | direct)
        except OSError as error:
            if error.errno != errno.EINVAL or not direct:
                raise
            fd = os.open(path, os.O_RDONLY)  # O_DIRECT is not supported here
        try:
            fill = self._read_pages if direct else _read
            while view:
                count = fill(fd, start, view, digest)
                if count <= 0:
                    raise ValueError(f"{path} ends too early.")
                view, start = view[count:], start + count
        finally:
            os.close(fd)

    def _read_pages(self, fd: int, start: int, view: memoryview, digest: Any) -> int:
        """Read through page-aligned memory, in whole pages of the file."""
        import numpy as np  # its copies release the GIL

        if not hasattr(self._of_thread, "memory"):
            self._of_thread.memory = memoryview(mmap.mmap(-1, READ))
            self._of_thread.array = np.frombuffer(self._of_thread.memory, np.uint8)
        skip = start % PAGE
        length = min(READ, len(view) + skip + PAGE - 1) // PAGE * PAGE
        try:
            num_read = os.preadv(fd, [self._of_thread.memory[:length]], start - skip) - skip
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~DIRECT)
            return _read(fd, start, view, digest)
        count = min(num_read, len(view))
        if count > 0:
            piece = self._of_thread.array[skip : skip + count]
            if digest is not None:
                digest.update(piece)
            np.copyto(np.frombuffer(view[:count], np.uint8), piece)
        return count


def _read(fd: int, start: int, view: memoryview, digest: Any) -> int:
    count = os.preadv(fd, [view[:READ]], start)
    if digest is not None:
        digest.update(view[:count])
    return count
