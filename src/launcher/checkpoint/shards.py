"""Tensors on disk: one file per rank in the safetensors format, and a reader for all of them.

The format is eight bytes of header length (little endian), a JSON header, and the tensors' bytes;
any safetensors library opens the files (https://huggingface.co/docs/safetensors). They are not
written by that library, so that the bytes go straight from the host buffers to the disk and are
hashed on the way. For a tensor that is sharded over ranks, the header's metadata contains the
position of each shard in the full tensor.
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import torch
import xxhash

from launcher.checkpoint.chunks import read_bytes
from launcher.checkpoint.files import FileEntry, nothing, write_file
from launcher.checkpoint.header import DTYPES, OTHER_DTYPES, PARTS, TORCH, read_header
from launcher.checkpoint.manifest import CorruptCheckpoint, changed
from launcher.strategies.base import ShardSpec

READERS = 4
"""Number of reading threads, enough to keep a disk busy while other bytes are hashed."""


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a CPU tensor, copied only if it is not contiguous."""
    # `reshape` would not do: for torch a single value is contiguous with any stride, and keeps it.
    flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


def why_not_stored(tensor: torch.Tensor) -> str | None:
    """Return the property of a tensor that a checkpoint does not support, as a noun.

    Returns:
        None if it can be stored.
    """
    if tensor.layout is not torch.strided:
        return f"layout {str(tensor.layout).removeprefix('torch.')}"
    try:
        torch.empty(1, dtype=tensor.dtype).copy_(torch.empty(1, dtype=tensor.dtype)).view(
            torch.uint8
        )
    except (RuntimeError, NotImplementedError):
        return f"dtype {str(tensor.dtype).removeprefix('torch.')}"
    return None


def write_tensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    parts: Mapping[str, ShardSpec] | None = None,
    advanced: Callable[[], None] = nothing,
) -> FileEntry:
    """Write CPU tensors.

    Args:
        path: the new file.
        tensors: the tensors by name.
        parts: the positions of the tensors that are shards.
        advanced: see `write_file`.

    Raises:
        OSError: see `write_file`.
    """
    header: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    if parts:
        described = {
            name: {"shape": part.shape, "offset": part.offset} for name, part in parts.items()
        }
        metadata[PARTS] = json.dumps(described)
    if others := {
        n: str(t.dtype).removeprefix("torch.") for n, t in tensors.items() if t.dtype not in DTYPES
    }:
        metadata[OTHER_DTYPES] = json.dumps(others)
    if metadata:
        header["__metadata__"] = metadata
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        shape = [*tensor.shape, *([tensor.element_size()] if name in others else [])]
        header[name] = {
            "dtype": DTYPES.get(tensor.dtype, "U8"),
            "shape": shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    buffers = (as_bytes(tensor) for tensor in tensors.values() if tensor.numel())

    def stream() -> Iterator[memoryview | bytes]:
        yield struct.pack("<Q", len(text)) + text
        yield from buffers

    return write_file(path, stream(), advanced, end)


@dataclass(frozen=True)
class _Piece:
    file: Path
    start: int
    """Position of its first byte in the file."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    checksum: str | None = None
    """Checksum that is compared when it is read, or None if it is not known."""


class ShardReader:
    """All tensors of some safetensors files, sharded or full.

    Each is read straight into its target.

    Args:
        entries: the manifest's entries by file name. Bytes that are read are compared with their
            checksums.

    Raises:
        CorruptCheckpoint: a checksum differs. The methods raise it too.
    """

    def __init__(
        self,
        files: list[Path],
        path: Path | None = None,
        entries: Mapping[str, FileEntry] | None = None,
    ):
        self.path = path or (files[0].parent if files else Path())
        self.meta: dict[str, Any] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._reads: list[Future[None]] = []
        self._pieces: dict[str, list[_Piece]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for file in files:
            pieces = entries[file.name].pieces if entries is not None else ()
            header, base = read_header(file, pieces[0][1] if pieces else None)
            ends = accumulate(length for length, _ in pieces)
            sums = {
                end - length: checksum for end, (length, checksum) in zip(ends, pieces, strict=True)
            }
            metadata = header.pop("__metadata__", {})
            parts, others = (json.loads(metadata.get(key, "{}")) for key in (PARTS, OTHER_DTYPES))
            for name, entry in header.items():
                shape, dtype = tuple(entry["shape"]), TORCH[entry["dtype"]]
                if name in others:
                    shape, dtype = shape[:-1], getattr(torch, others[name])
                part = parts.get(name, {"shape": shape, "offset": [0] * len(shape)})
                start, _ = entry["data_offsets"]
                piece = _Piece(
                    file, base + start, dtype, shape, tuple(part["offset"]), sums.get(base + start)
                )
                self._pieces.setdefault(name, []).append(piece)
                self._shapes[name] = tuple(part["shape"])

    def names(self) -> list[str]:
        return list(self._pieces)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        return self._pieces[name][0].dtype

    def read(self, name: str) -> torch.Tensor:
        """The full tensor, on the CPU."""
        target = torch.empty(self._shapes[name], dtype=self.dtype(name))
        self.read_into(name, target)
        return target

    @contextmanager
    def concurrent_reads(self) -> Iterator[None]:
        """Let reads inside this context run concurrently.

        Their targets have their values at its end.
        """
        with ThreadPoolExecutor(READERS, "checkpoint-reader") as self._pool:
            try:
                yield
                for read in self._reads:
                    read.result()
            finally:
                self._pool.shutdown(cancel_futures=True)
                self._pool, self._reads = None, []

    def read_into(
        self, name: str, target: torch.Tensor, offset: tuple[int, ...] | None = None
    ) -> None:
        """Fill `target`, a box or range (see `ShardSpec`) of the full tensor.

        It starts at `offset`, which defaults to the origin.
        """
        target = target.detach()
        offset = offset or (0,) * target.dim()
        whole, pieces = self._shapes[name], self._pieces[name]
        # One is a box, the other a contiguous range.
        if any(len(piece.offset) != len(offset) for piece in pieces):
            start = _run_start(whole, tuple(target.shape), offset)
            runs = [_as_run(piece, whole) for piece in pieces]
            if start is None or None in runs or not target.is_contiguous():
                target.copy_(_cut(self._now(name), target, offset))
                return
            target, offset, pieces = (
                target.view(-1),
                (start,),
                [run for run in runs if run is not None],
            )
        filled = 0
        for piece in pieces:
            if piece.shape == tuple(target.shape) and piece.offset == offset:
                if self._pool is None:
                    self._read_whole(piece, target)
                else:
                    self._reads.append(self._pool.submit(self._read_whole, piece, target))
                return
            filled += self._read_overlap(piece, target, offset)
        _expect(name, filled, target)

    def _now(self, name: str) -> torch.Tensor:
        """Read the full tensor in this thread."""
        whole = torch.empty(self._shapes[name], dtype=self.dtype(name))
        filled = 0
        for piece in self._pieces[name]:
            target = whole if len(piece.offset) == whole.dim() else whole.view(-1)
            filled += self._read_overlap(piece, target, (0,) * target.dim())
        _expect(name, filled, whole)
        return whole

    def _read_whole(self, piece: _Piece, target: torch.Tensor) -> None:
        direct = (
            target.device.type == "cpu" and target.is_contiguous() and target.dtype == piece.dtype
        )
        buffer = target if direct else torch.empty(piece.shape, dtype=piece.dtype)
        if buffer.numel():
            self._read_bytes(piece, piece.start, as_bytes(buffer), piece.checksum)
        if not direct:
            target.copy_(buffer)

    def _read_bytes(
        self, piece: _Piece, start: int, view: memoryview, checksum: str | None = None
    ) -> None:
        digest = None if checksum is None else xxhash.xxh3_128()
        read_bytes(piece.file, start, view, digest)
        if digest is not None and digest.hexdigest() != checksum:
            raise CorruptCheckpoint(piece.file.parent.name, changed(piece.file.name))

    def _read_overlap(self, piece: _Piece, target: torch.Tensor, offset: tuple[int, ...]) -> int:
        """Copy the overlap of a shard and the target's box; return its number of values."""
        low = [max(a, b) for a, b in zip(piece.offset, offset, strict=True)]
        high = [
            min(a + n, b + m)
            for a, n, b, m in zip(piece.offset, piece.shape, offset, target.shape, strict=True)
        ]
        if any(h <= lo for lo, h in zip(low, high, strict=True)):
            return 0
        rows = self._read_rows(piece, low[0] - piece.offset[0], high[0] - piece.offset[0])
        columns = tuple(
            slice(a - o, b - o) for a, b, o in zip(low[1:], high[1:], piece.offset[1:], strict=True)
        )
        source = rows[(slice(None), *columns)]
        region = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, offset, strict=True))
        target[region].copy_(source)
        return source.numel()

    def _read_rows(self, piece: _Piece, first: int, last: int) -> torch.Tensor:
        """Read only the needed rows, which are contiguous on disk.

        With a checksum, read and verify the entire shard.
        """
        if piece.checksum is not None:
            whole = torch.empty(piece.shape, dtype=piece.dtype)
            self._read_whole(piece, whole)
            return whole[first:last]
        row = prod(piece.shape[1:])
        rows = torch.empty((last - first, *piece.shape[1:]), dtype=piece.dtype)
        self._read_bytes(piece, piece.start + first * row * rows.element_size(), as_bytes(rows))
        return rows


def _expect(name: str, filled: int, target: torch.Tensor) -> None:
    if filled < target.numel():
        raise ValueError(
            f"{name}: the files hold {filled} of the {target.numel()} values asked for."
        )


def _run_start(
    whole: tuple[int, ...], shape: tuple[int, ...], offset: tuple[int, ...]
) -> int | None:
    """Return the position of a contiguous range among the full tensor's values.

    A box of full rows is such a range.

    Returns:
        None for other boxes.
    """
    if len(offset) != len(whole):
        return offset[0]
    return (offset[0] * prod(whole[1:]) if whole else 0) if shape[1:] == whole[1:] else None


def _as_run(piece: _Piece, whole: tuple[int, ...]) -> _Piece | None:
    start = _run_start(whole, piece.shape, piece.offset)
    return None if start is None else replace(piece, shape=(prod(piece.shape),), offset=(start,))


def _cut(whole: torch.Tensor, target: torch.Tensor, offset: tuple[int, ...]) -> torch.Tensor:
    """Return the part of the full tensor that is `target`'s box or range."""
    if len(offset) != whole.dim():
        return whole.view(-1)[offset[0] : offset[0] + target.numel()].view(target.shape)
    return whole[
        tuple(slice(start, start + n) for start, n in zip(offset, target.shape, strict=True))
    ]
