"""Blocks of records in files that fsspec can open: row groups of Parquet, lines of JSON lines."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import xxhash

from launcher.config.messages import reason
from launcher.data.record_readers import open_parquet
from launcher.errors import ConfigError
from launcher.process import signals
from launcher.process.files import parse_json, replace_file

logger = logging.getLogger("launcher")
T = TypeVar("T")
ENDINGS = (".jsonl", ".parquet")
READ_BYTES = 8 << 20
"""Bytes of one request while the lines of a file are counted."""
DIGEST_BYTES = 1 << 16
"""Bytes at the beginning and at the end of a file that its digest is computed from."""
THREADS = 8
PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError)
"""Errors that another attempt does not change."""


class Files:
    """The files that URLs, paths or globs name, through fsspec; `key` is for messages."""

    def __init__(
        self, key: str, patterns: str | Sequence[str], retries: int, options: dict[str, object]
    ):
        self.key, self.retries = key, retries
        self.patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        try:
            import fsspec
        except ImportError as error:
            raise ConfigError(
                f"{key}: needs the package fsspec; pip install 'torch-launcher[remote]'."
            ) from error
        if not self.patterns:
            raise ConfigError(f"{key}=[]: names no file; give a URL, path or glob.")
        stores: list[Any] = []
        for pattern in self.patterns:
            try:
                fs, _ = fsspec.core.url_to_fs(str(pattern), **options)
            except (ValueError, ImportError, TypeError) as error:
                raise ConfigError(f"{key}={pattern}: {str(error).rstrip('.')}.") from error
            stores.append(fs)
            if fs is not stores[0]:
                raise ConfigError(f"{key}={pattern}: is in another store than {self.patterns[0]}.")
        self.fs = stores[0]

    def find(self) -> list[str]:
        paths: set[str] = set()
        for pattern in self.patterns:
            matches = self.retry(lambda: self.fs.glob(str(pattern)), pattern)  # noqa: B023 - called at once
            if not matches:
                raise ConfigError(f"{self.key}={pattern}: names no file; give a URL, path or glob.")
            paths.update(map(str, matches))
        for path in sorted(paths):
            if not path.endswith(ENDINGS):
                raise ConfigError(f"{self.key}={path}: should end in {' or '.join(ENDINGS)}.")
        return sorted(paths)

    def retry(self, read: Callable[[], T], path: str) -> T:
        """Call `read` again after an error; each wait takes twice as long as the wait before."""
        for attempt in count():
            try:
                return read()
            except ConfigError:
                raise
            # Each file system has errors of its own for a connection that is lost.
            except Exception as error:
                if isinstance(error, PERMANENT) or attempt == self.retries:
                    tried = f" in {attempt + 1} attempts" if attempt else ""
                    raise ConfigError(
                        f"{self.key}: {path}: cannot be read{tried} ({reason(error)})."
                    ) from error
                time.sleep(min(0.1 * 2**attempt, 10.0))
        raise AssertionError("unreachable")

    def bytes_of(self, path: str, start: int, stop: int) -> bytes:
        def read() -> bytes:
            data: bytes = self.fs.cat_file(path, start=start, end=stop)
            if len(data) != stop - start:
                raise OSError(f"{len(data)} bytes came instead of {stop - start}")
            return data

        return self.retry(read, path)

    def size(self, path: str) -> int:
        return int(self.retry(lambda: self.fs.size(path), path))

    def stamp(self, path: str) -> list[str]:
        """Values that change with the file: its size, its time or its ETag."""
        info = self.retry(lambda: self.fs.info(path), path)
        return [str(info.get(name)) for name in ("size", "ETag", "mtime", "LastModified")]


@dataclass
class BlockIndex:
    """The places of the blocks of several files.

    Args:
        paths: the files.
        file: the number of each block's file, int64 [N].
        start, stop: the range of bytes of lines; the number of a row group and the next, int64 [N].
        rows: the records of each block, int64 [N].
        digests: of each file, from its size, its beginning and its end.
    """

    paths: list[str]
    file: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    rows: np.ndarray
    digests: list[str]

    @property
    def fingerprint(self) -> str:
        digest = xxhash.xxh3_64_hexdigest(json.dumps([self.digests, self.rows.tolist()]).encode())
        return f"{int(self.rows.sum())} records in {len(self.rows)} blocks, xxh3 {digest}"

    def save(self, path: Path) -> None:
        buffer = BytesIO()
        text = json.dumps({"paths": self.paths, "digests": self.digests})
        np.savez(
            buffer,
            blocks=np.stack([self.file, self.start, self.stop, self.rows]),
            text=np.frombuffer(text.encode(), dtype=np.uint8),
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> BlockIndex:
        with np.load(path, allow_pickle=False) as stored:
            text, (file, start, stop, rows) = stored["text"].tobytes(), stored["blocks"]
        names = parse_json(text)
        return cls(names["paths"], file, start, stop, rows, names["digests"])


def index(files: Files, paths: Sequence[str], block_bytes: int) -> BlockIndex:
    """Find the blocks of files. Lines must be counted, which reads the whole file once."""
    logger.info("Indexing %d files of %s.", len(paths), files.key)

    def blocks_of(path: str) -> tuple[list[tuple[int, int, int]], str]:
        signals.check()
        ranges = row_groups if path.endswith(".parquet") else line_ranges
        blocks, digest = list(ranges(files, path, block_bytes)), _digest(files, path)
        if not blocks:
            raise ConfigError(f"{files.key}: {path}: has no record; leave it out.")
        return blocks, digest

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(blocks_of, paths))
    table = [(number, *block) for number, (blocks, _) in enumerate(results) for block in blocks]
    file, start, stop, rows = np.array(table, dtype=np.int64).T
    return BlockIndex(list(paths), file, start, stop, rows, [digest for _, digest in results])


def _digest(files: Files, path: str) -> str:
    size = files.size(path)
    first = files.bytes_of(path, 0, min(size, DIGEST_BYTES))
    last = files.bytes_of(path, max(0, size - DIGEST_BYTES), size)
    return xxhash.xxh3_64_hexdigest(str(size).encode() + first + last)


def line_ranges(files: Files, path: str, block_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, records) of blocks of at least `block_bytes` bytes of whole lines."""
    size = files.size(path)
    start = position = rows = 0
    rest = b""
    while position < size:
        signals.check()
        data = rest + files.bytes_of(path, position, min(size, position + READ_BYTES))
        begin, position = position - len(rest), min(size, position + READ_BYTES)
        end = len(data) if position == size else data.rfind(b"\n") + 1
        at = 0
        while at < end:
            stop = data.find(b"\n", max(at, start + block_bytes - begin - 1), end) + 1 or end
            rows += sum(1 for line in data[at:stop].split(b"\n") if line.strip())
            at = stop
            if begin + at - start >= block_bytes and rows:
                yield start, begin + at, rows
                start, rows = begin + at, 0
        rest = data[end:]
    if rows:
        yield start, size, rows


def row_groups(files: Files, path: str, block_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield (number, number + 1, records) of each row group that has a record."""
    for number, rows in enumerate(files.retry(lambda: _rows_of_groups(files, path), path)):
        if rows:
            yield number, number + 1, rows


def _rows_of_groups(files: Files, path: str) -> list[int]:
    with files.fs.open(path, "rb") as file:
        metadata = open_parquet(file, f"{files.key}: {path}").metadata
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
