"""The header of a safetensors file, checked before it is used."""

import json
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError, safe_open

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


def read_header(path: Path, piece: tuple[int, str] | None = None) -> tuple[dict[str, Any], int]:
    """Read the header of a safetensors file and the position at which its data start.

    Args:
        path: the file.
        piece: length and checksum of the header. If they are not known, safetensors checks the
            header and the length of the file.
    Raises:
        CorruptCheckpoint: it does not have the checksum, or is not the header of such a file.
    """
    with open(path, "rb") as file:
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
