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
from copy import copy
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any, Self

import torch
import xxhash
from safetensors import SafetensorError, safe_open

from launcher.checkpoint.chunks import read_bytes
from launcher.checkpoint.durable_files import FileEntry, nothing, write_file
from launcher.checkpoint.manifest import CorruptCheckpoint, checksum_problem
from launcher.process.files import open_file
from launcher.strategies.base import Shape, ShardSpec
from launcher.strategies.sharded import is_sharded

READERS = 4
"""Number of reading threads, enough to keep a disk busy while other bytes are hashed."""

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL", torch.complex64: "C64",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}  # fmt: skip
if hasattr(torch, "float8_e8m0fnu"):
    # Since torch 2.7.
    DTYPES[torch.float8_e8m0fnu] = "F8_E8M0"
TORCH = {name: dtype for dtype, name in DTYPES.items()}
PARTS_KEY = "launcher.parts"
OTHER_DTYPES_KEY = "launcher.dtypes"
"""Dtypes that safetensors does not have, stored as bytes with one more dimension."""


def read_header(path: Path, piece: tuple[int, str] | None = None) -> tuple[dict[str, Any], int]:
    """Read the header of a safetensors file and the position at which its data start.

    Args:
        path: the file.
        piece: length and checksum of the header. If they are not known, safetensors checks the
            header and the length of the file.
    Raises:
        CorruptCheckpoint: it does not have the checksum, or is not the header of such a file.
    """
    with open_file(path, follow=True) as file:
        if piece is None:
            _check_format(path)
        size = piece[0] if piece else 8 + int.from_bytes(file.read(8), "little")
        file.seek(0)
        content = file.read(size)
    if piece is not None and xxhash.xxh3_128_hexdigest(content) != piece[1]:
        raise CorruptCheckpoint(path.parent.name, checksum_problem(path.name))
    header: dict[str, Any] = json.loads(content[8:])
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] not in TORCH:
            raise CorruptCheckpoint(
                f"{path.name}: {name} has the dtype {entry['dtype']}, which is not supported"
            )
    return header, size


def _check_format(path: Path) -> None:
    try:
        with safe_open(path, "pt"):
            pass
    except SafetensorError as error:
        raise CorruptCheckpoint(
            f"{path.name} is not a complete safetensors file: {error}"
        ) from error


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a CPU tensor, copied only if it is not contiguous."""
    # `reshape` would not do: for torch a single value is contiguous with any stride, and keeps it.
    flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


def why_not_stored(tensor: torch.Tensor) -> str | None:
    """Return the property, as a noun, with which a checkpoint cannot store a tensor, if any."""
    if is_sharded(tensor):
        return "shards on several ranks"
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
    """Write CPU tensors. `parts` has the positions of shards in their full tensors."""
    header: dict[str, object] = {}
    metadata: dict[str, str] = {}
    if parts:
        described = {
            name: {"shape": part.shape, "offset": part.offset} for name, part in parts.items()
        }
        metadata[PARTS_KEY] = json.dumps(described)
    if others := {
        n: str(t.dtype).removeprefix("torch.") for n, t in tensors.items() if t.dtype not in DTYPES
    }:
        metadata[OTHER_DTYPES_KEY] = json.dumps(others)
    if metadata:
        header["__metadata__"] = metadata
    end = 0
    for name, tensor in tensors.items():
        start = end
        end += tensor.numel() * tensor.element_size()
        shape = [*tensor.shape, *([tensor.element_size()] if name in others else [])]
        header[name] = {
            "dtype": DTYPES.get(tensor.dtype, "U8"),
            "shape": shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    # The format lets the data begin at a multiple of eight, which a reader may map.
    text += b" " * (-len(text) % 8)
    buffers = (as_bytes(tensor) for tensor in tensors.values() if tensor.numel())

    def stream() -> Iterator[memoryview | bytes]:
        yield struct.pack("<Q", len(text)) + text
        yield from buffers

    return write_file(path, stream(), advanced, end)


@dataclass(frozen=True)
class _Shard:
    file: Path
    start: int
    """Position of its first byte in the file."""
    dtype: torch.dtype
    shape: Shape
    offset: Shape
    checksum: str | None = None
    """Checksum that is compared when it is read, or None if it is not known."""


class ShardReader:
    """All tensors of some safetensors files, sharded or full, read straight into their targets.

    Bytes are compared with the checksums of the manifest's entries, which are by file name.

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
        self._shards: dict[str, list[_Shard]] = {}
        self._shapes: dict[str, Shape] = {}
        for file in files:
            pieces = entries[file.name].pieces if entries is not None else ()
            header, base = read_header(file, pieces[0] if pieces else None)
            ends = accumulate(length for length, _ in pieces)
            sums = {
                end - length: checksum for end, (length, checksum) in zip(ends, pieces, strict=True)
            }
            metadata = header.pop("__metadata__", {})
            parts, others = (
                json.loads(metadata.get(key, "{}")) for key in (PARTS_KEY, OTHER_DTYPES_KEY)
            )
            for name, entry in header.items():
                shape = tuple(entry["shape"])
                dtype = TORCH[entry["dtype"]]
                if name in others:
                    shape = shape[:-1]
                    dtype = getattr(torch, others[name])
                part = parts.get(name, {"shape": shape, "offset": [0] * len(shape)})
                start, _ = entry["data_offsets"]
                shard = _Shard(
                    file, base + start, dtype, shape, tuple(part["offset"]), sums.get(base + start)
                )
                self._shards.setdefault(name, []).append(shard)
                self._shapes[name] = tuple(part["shape"])

    def names(self) -> list[str]:
        return list(self._shards)

    def shape(self, name: str) -> Shape:
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        return self._shards[name][0].dtype

    def under_names(self, names: Mapping[str, str]) -> Self:
        """Return a reader with other names; `names` maps each to the stored name."""
        renamed = copy(self)
        renamed._shards = {name: self._shards[stored] for name, stored in names.items()}
        renamed._shapes = {name: self._shapes[stored] for name, stored in names.items()}
        return renamed

    def read(self, name: str) -> torch.Tensor:
        """Return the full tensor, on the CPU."""
        target = torch.empty(self._shapes[name], dtype=self.dtype(name))
        self.read_into(name, target)
        return target

    @contextmanager
    def concurrent_reads(self) -> Iterator[None]:
        """Let reads in this context run concurrently, until its end."""
        with ThreadPoolExecutor(READERS, "checkpoint-reader") as self._pool:
            try:
                yield
                for read in self._reads:
                    read.result()
            finally:
                self._pool.shutdown(cancel_futures=True)
                self._pool = None
                self._reads = []

    def read_into(self, name: str, target: torch.Tensor, offset: Shape | None = None) -> None:
        """Fill `target`, a box or range (see `ShardSpec`) of the full tensor.

        It starts at `offset`, which defaults to the origin.
        """
        target, offset = target.detach(), offset or (0,) * target.dim()
        if self._pool is None:
            self._read_into(name, target, offset)
        else:
            self._reads.append(self._pool.submit(self._read_into, name, target, offset))

    def _read_into(self, name: str, target: torch.Tensor, offset: Shape) -> None:
        shape = self._shapes[name]
        shards = self._shards[name]
        if all(len(shard.offset) == len(offset) for shard in shards):
            filled = sum(self._read_overlap(shard, target, offset) for shard in shards)
            _expect(name, filled, target)
            return
        # The shards may be boxes and the target a range of the flattened values, or the reverse.
        full = torch.empty(shape, dtype=self.dtype(name))
        filled = 0
        for shard in shards:
            view = full if len(shard.offset) == len(shape) else full.view(-1)
            filled += self._read_overlap(shard, view, (0,) * view.dim())
        _expect(name, filled, full)
        if len(offset) == len(shape):
            box = zip(offset, target.shape, strict=True)
            target.copy_(full[tuple(slice(start, start + count) for start, count in box)])
        else:
            values = full.view(-1)[offset[0] : offset[0] + target.numel()]
            target.copy_(values.view(target.shape))

    def _read_whole(self, shard: _Shard, target: torch.Tensor) -> None:
        direct = (
            target.device.type == "cpu" and target.is_contiguous() and target.dtype == shard.dtype
        )
        buffer = target if direct else torch.empty(shard.shape, dtype=shard.dtype)
        if buffer.numel():
            self._read_bytes(shard, shard.start, as_bytes(buffer), shard.checksum)
        if not direct:
            target.copy_(buffer)

    def _read_bytes(
        self, shard: _Shard, start: int, view: memoryview, checksum: str | None = None
    ) -> None:
        digest = None if checksum is None else xxhash.xxh3_128()
        read_bytes(shard.file, start, view, digest)
        if digest is not None and digest.hexdigest() != checksum:
            raise CorruptCheckpoint(shard.file.parent.name, checksum_problem(shard.file.name))

    def _read_overlap(self, shard: _Shard, target: torch.Tensor, offset: Shape) -> int:
        """Copy the overlap of a shard and the target; return its number of values."""
        if shard.shape == tuple(target.shape) and shard.offset == offset:
            self._read_whole(shard, target)
            return target.numel()
        low = [max(a, b) for a, b in zip(shard.offset, offset, strict=True)]
        high = [
            min(a + n, b + m)
            for a, n, b, m in zip(shard.offset, shard.shape, offset, target.shape, strict=True)
        ]
        if any(h <= lo for lo, h in zip(low, high, strict=True)):
            return 0
        rows = self._read_rows(shard, low[0] - shard.offset[0], high[0] - shard.offset[0])
        columns = tuple(
            slice(a - o, b - o) for a, b, o in zip(low[1:], high[1:], shard.offset[1:], strict=True)
        )
        source = rows[(slice(None), *columns)]
        region = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, offset, strict=True))
        target[region].copy_(source)
        return source.numel()

    def _read_rows(self, shard: _Shard, first: int, last: int) -> torch.Tensor:
        """Read the needed rows, contiguous on disk, or verify the entire shard."""
        if shard.checksum is not None:
            whole = torch.empty(shard.shape, dtype=shard.dtype)
            self._read_whole(shard, whole)
            return whole[first:last]
        row = prod(shard.shape[1:])
        rows = torch.empty((last - first, *shard.shape[1:]), dtype=shard.dtype)
        self._read_bytes(shard, shard.start + first * row * rows.element_size(), as_bytes(rows))
        return rows


def _expect(name: str, filled: int, target: torch.Tensor) -> None:
    if filled < target.numel():
        raise ValueError(
            f"{name}: the files hold {filled} of the {target.numel()} values asked for."
        )
