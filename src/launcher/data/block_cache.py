"""Blocks of records on the local disk: fetched once by each node, and bounded in size."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import xxhash

from launcher.data.blocks import BlockIndex, Files
from launcher.data.record_readers import check_columns, open_parquet, record_of
from launcher.errors import ConfigError
from launcher.process.files import replace_file

PART, LOCK = ".block", ".lock"


class BlockCache:
    """Reads blocks through files in a folder, which the processes of a node share.

    Above `max_bytes`, the blocks that were not used for the longest time are deleted. Records keep
    the fields in `columns`.
    """

    def __init__(
        self, files: Files, index: BlockIndex, columns: list[str], folder: Path, max_bytes: int
    ):
        self.files, self.index, self.columns = files, index, columns
        self.folder, self.max_bytes = folder, max_bytes

    def records(self, block: int) -> list[dict[str, Any]]:
        data = self._bytes(block)
        if self._path(block).endswith(".parquet"):
            from pyarrow import ipc

            records: list[dict[str, Any]] = ipc.open_stream(data).read_all().to_pylist()
        else:
            where = f"{self.files.key}: {self._path(block)}"
            records = [record_of(line, where) for line in data.split(b"\n") if line.strip()]
        if len(records) != self.index.rows[block]:
            raise ConfigError(
                f"{self.files.key}: {self._path(block)}: has changed since it was indexed; start a"
                " run of its own for the new data (run.tag=...)."
            )
        return records

    def _path(self, block: int) -> str:
        return self.index.paths[int(self.index.file[block])]

    def _bytes(self, block: int) -> bytes:
        number = int(self.index.file[block])
        what = (self.index.digests[number], int(self.index.start[block]), *self.columns)
        file = self.folder / f"{xxhash.xxh3_64_hexdigest(repr(what).encode())}{PART}"
        with suppress(FileNotFoundError):
            return _read_and_touch(file)
        # Another rank of this node may be fetching it.
        with lock_file(file.with_suffix(LOCK)):
            with suppress(FileNotFoundError):
                return _read_and_touch(file)
            data = self._fetch(block)
            self._store(file, data)
            return data

    def _fetch(self, block: int) -> bytes:
        path, start = self._path(block), int(self.index.start[block])
        if path.endswith(".parquet"):
            return self.files.retry(lambda: self._row_group(path, start), path)
        return self.files.bytes_of(path, start, int(self.index.stop[block]))

    def _row_group(self, path: str, group: int) -> bytes:
        from pyarrow import BufferOutputStream, ipc

        with self.files.fs.open(path, "rb") as file:
            where = f"{self.files.key}: {path}"
            parquet = open_parquet(file, where, pre_buffer=True)
            check_columns(where, self.columns, parquet.schema_arrow.names)
            table = parquet.read_row_group(group, columns=self.columns)
        sink = BufferOutputStream()
        with ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    def _store(self, file: Path, data: bytes) -> None:
        # The room that was made must not be taken by another block before this one is written.
        with lock_file(self.folder / f"room{LOCK}"):
            self._make_room(len(data))
            try:
                replace_file(file, data)
            except OSError as error:
                raise ConfigError(
                    f"data.cache={self.folder}: a block cannot be written ({error.strerror}); use"
                    " another folder, or a smaller data.cache_size."
                ) from error

    def _make_room(self, size: int) -> None:
        stats = []
        for file in self.folder.glob(f"*{PART}"):
            with suppress(FileNotFoundError):
                stats.append((file.stat().st_mtime_ns, file.stat().st_size, file))
        total = size + sum(file_size for _, file_size, _ in stats)
        for _, file_size, file in sorted(stats):
            if total <= self.max_bytes:
                break
            file.unlink(missing_ok=True)
            # A process that waits for this lock may fetch the block a second time, and no worse.
            file.with_suffix(LOCK).unlink(missing_ok=True)
            total -= file_size


def _read_and_touch(file: Path) -> bytes:
    data = file.read_bytes()
    with suppress(OSError):
        os.utime(file)
    return data


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold the lock of a file; the system releases it when a process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
