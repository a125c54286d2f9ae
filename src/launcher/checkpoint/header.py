"""The header of a safetensors file, checked before it is used."""

import json
import os
import struct
from math import prod
from pathlib import Path
from typing import Any

import torch
import xxhash

from launcher.checkpoint.manifest import CorruptCheckpoint, checksum_problem

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
TORCH = {name: dtype for dtype, name in DTYPES.items()}
PARTS_KEY = "launcher.parts"
OTHER_DTYPES_KEY = "launcher.dtypes"
"""Dtypes that safetensors does not have, stored as bytes with one more dimension."""


def read_header(path: Path, checksum: str | None = None) -> tuple[dict[str, Any], int]:
    """Read the header of a safetensors file and the position at which its data start.

    Raises:
        CorruptCheckpoint: it does not have the known checksum, or is not the header of such a file.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        text = file.read(min(length, size))
    if checksum not in (None, xxhash.xxh3_128_hexdigest(start + text)):
        raise CorruptCheckpoint(path.parent.name, checksum_problem(path.name))
    if issue := _header_fault(text, size, length):
        raise CorruptCheckpoint(f"{path.name} is not a complete safetensors file: {issue}")
    return json.loads(text), 8 + length


def _header_fault(text: bytes, size: int, length: int) -> str | None:
    """Explain why these bytes cannot be the header of a file of `size` bytes, if so."""
    if not length or 8 + length > size:
        return (
            f"it has {size} bytes, its header should have {length}"
            if length
            else f"it has {size} bytes"
        )
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        return "its header is not JSON"
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__", {}), dict):
        return "its header is not a table of tensors"
    for name, entry in header.items():
        if name != "__metadata__" and (issue := _entry_fault(entry, size - 8 - length)):
            return f"{name} {issue}"
    return _span_fault(header, size - 8 - length)


def _span_fault(header: dict[str, Any], num_bytes: int) -> str | None:
    """Explain why tensors do not take `num_bytes` one after the other, if so."""
    spans = [
        (entry["data_offsets"], name) for name, entry in header.items() if name != "__metadata__"
    ]
    position = 0
    for (start, end), name in sorted(spans):
        if start != position:
            return f"{name} should begin at byte {position} of its data, not at {start}"
        position = end
    return None if position == num_bytes else f"its data have {num_bytes} bytes, not {position}"


def _entry_fault(entry: Any, num_bytes: int) -> str | None:
    """Explain why this cannot describe a tensor in `num_bytes` of data, if so."""
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if dtype not in TORCH:
            return f"has the dtype {dtype}, which is not supported"
        is_whole = all(type(number) is int and number >= 0 for number in (*shape, start, end))
    except (TypeError, KeyError, ValueError):
        return "has no dtype, shape and data_offsets"
    if not is_whole or end - start != prod(shape) * TORCH[dtype].itemsize:
        return f"has the shape {shape}, which does not fit its {dtype} data"
    return f"should end at byte {end} of {num_bytes}" if end > num_bytes else None
