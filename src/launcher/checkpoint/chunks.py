"""Write large files past the page cache, which would slow the training that continues.

Allocating, filling and evicting its pages takes time. Two chunks are being written while the next
is filled.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

CHUNK = 2 << 20
"""Bytes of a chunk. All fit in the processor's cache, from which the disk reads them."""
READ_BYTES = 4 << 20
"""Bytes that are read and hashed at a time. They fit in the processor's cache."""
WRITERS = 2
MIN_DIRECT_BYTES = 16 << 20
"""Bytes below which a file gets ordinary writes only."""
DIRECT = getattr(os, "O_DIRECT", 0)


class ChunkWriter:
    """Writes a new file of about `size` bytes, on which the caller calls fsync.

    Full chunks are written with O_DIRECT, from page-aligned memory, into reserved space, since
    writes that make a file longer wait for each other. The rest, small files, and file systems
    without O_DIRECT use ordinary writes.
    """

    def __init__(self, fd: int, size: int):
        self.fd = fd
        self.size = size
        self.is_small = size < MIN_DIRECT_BYTES
        self._flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        self._full: SimpleQueue[tuple[mmap.mmap, int] | None] = SimpleQueue()
        self._empty: SimpleQueue[mmap.mmap] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._start = 0
        """Offset in the file of the next bytes; for large files, of the first byte in `_chunk`."""
        self._filled = 0

    def __enter__(self) -> "ChunkWriter":
        if not self.is_small:
            reserve(self.fd, self.size)
            self._set_flags(self._flags | DIRECT)
            self._chunk = mmap.mmap(-1, CHUNK)
            for _ in range(WRITERS):
                self._empty.put(mmap.mmap(-1, CHUNK))
                # The thread is a daemon, since a hanging disk must not keep the process from
                # exiting.
                self._threads.append(
                    threading.Thread(target=self._work, name="checkpoint-disk", daemon=True)
                )
                self._threads[-1].start()
        return self

    def write(self, view: memoryview) -> None:
        """Write some bytes. An error may be of earlier ones; the context reports the last."""
        if self.is_small:
            write_all(self.fd, view, self._start)
            self._start += len(view)
            return
        # Numpy's copies release the GIL. It is imported late, since small files do not need it.
        import numpy as np

        source = np.frombuffer(view, np.uint8)
        while len(source):
            count = min(len(source), CHUNK - self._filled)
            np.copyto(np.frombuffer(self._chunk, np.uint8, count, self._filled), source[:count])
            self._filled += count
            source = source[count:]
            if self._filled == CHUNK:
                self._hand_over()

    def _hand_over(self) -> None:
        self._full.put((self._chunk, self._start))
        self._start += CHUNK
        self._filled = 0
        self._chunk = self._empty.get()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (work := self._full.get()) is not None:
            try:
                self._write_chunk(*work)
            # The waiting thread raises an error of any kind.
            except BaseException as error:
                self._error = self._error or error
            # Also after an error: `_hand_over` would wait for a free chunk forever.
            self._empty.put(work[0])

    def _write_chunk(self, chunk: mmap.mmap, start: int) -> None:
        try:
            write_all(self.fd, memoryview(chunk), start)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # O_DIRECT is not supported by this file system, or not after a short write.
            self._set_flags(self._flags)
            write_all(self.fd, memoryview(chunk), start)

    def _set_flags(self, flags: int) -> None:
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETFL, flags)
        # A file system without O_DIRECT rejects the flag, and gets ordinary writes.
        except OSError:
            if flags == self._flags:
                raise

    def __exit__(self, exception: object, *rest: object) -> None:
        for _ in self._threads:
            self._full.put(None)
        for thread in self._threads:
            thread.join()
        if self.is_small or exception is not None:
            return
        if self._error is not None:
            raise self._error
        # O_DIRECT writes whole blocks only, and the last chunk is not full.
        self._set_flags(self._flags)
        write_all(self.fd, memoryview(self._chunk)[: self._filled], self._start)
        # `reserve` made the file as long as the estimate.
        os.ftruncate(self.fd, self._start + self._filled)


def reserve(fd: int, size: int) -> None:
    """Make an empty file `size` bytes long and give it space, if the file system can.

    Python has only `posix_fallocate`, which writes to every block if the file system cannot reserve
    space.
    """
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)  # Linux has it
    if fallocate is None:
        return
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if fallocate(fd, 0, 0, size) and (code := ctypes.get_errno()) in (errno.ENOSPC, errno.EDQUOT):
        raise OSError(code, os.strerror(code))


def write_all(fd: int, view: memoryview, start: int) -> None:
    while view:
        count = os.pwrite(fd, view, start)
        view = view[count:]
        start += count


def read_bytes(path: Path, start: int, view: memoryview, digest: Any = None) -> None:
    """Fill `view` with the file's bytes from `start` on, and update the digest with them.

    Raises:
        ValueError: the file has fewer bytes.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        while view:
            count = os.preadv(fd, [view[:READ_BYTES]], start)
            if count <= 0:
                raise ValueError(f"{path} ends too early.")
            if digest is not None:
                digest.update(view[:count])
            view = view[count:]
            start += count
    finally:
        os.close(fd)
