"""Matrices that are logged, such as a confusion matrix: their numbers, and a picture of them."""

import math
import struct
import zlib
from collections.abc import Mapping

import numpy as np
import torch

from launcher.hooks.base import Records

Rows = list[list[float | None]]
"""Numbers by row, or None where one is not finite, which JSON does not have."""
SIDE = 320
"""Pixels of the longer side of a picture, about; a matrix with more cells has a pixel for each."""
DARKEST = np.array([0, 64, 130])
"""The colour of the largest value; the smallest is white."""
UNKNOWN = np.array([200, 200, 200])


def split_matrices(records: Mapping[str, object]) -> tuple[Records, Records]:
    """Nested records of numbers, and nested records of matrices, which are lists of rows."""
    numbers: Records = {}
    matrices: Records = {}
    for key, value in records.items():
        if isinstance(value, Mapping):
            for target, part in zip((numbers, matrices), split_matrices(value), strict=True):
                if part:
                    target[key] = part
        else:
            (matrices if isinstance(value, list) else numbers)[key] = value
    return numbers, matrices


def to_rows(key: str, value: object) -> Rows:
    """The numbers of a matrix: a tensor, an array or lists.

    Raises:
        ValueError: `value` is not a matrix of numbers.
    """
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype == torch.bfloat16 else value
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.ndim != 2 or not array.size or array.dtype.kind not in "buif":
        raise ValueError(
            f"log_matrices {key}: {type(value).__name__} of shape {tuple(array.shape)} is not a"
            " matrix of numbers; pass a 2-d tensor or array, or a list of rows."
        )
    return [[x if math.isfinite(x) else None for x in row] for row in array.tolist()]


def picture(rows: Rows) -> bytes:
    """A PNG with a square for each number, the darker the larger. It needs no pillow."""
    values = np.array([[math.nan if x is None else x for x in row] for row in rows], np.float64)
    known = np.isfinite(values)
    low, high = (values[known].min(), values[known].max()) if known.any() else (0.0, 0.0)
    share = (np.where(known, values, low) - low) / ((high - low) or 1.0)
    pixels = np.rint(255 + share[..., None] * (DARKEST - 255))
    pixels = np.where(known[..., None], pixels, UNKNOWN).astype(np.uint8)
    size = max(1, SIDE // max(values.shape))
    return _png(pixels.repeat(size, axis=0).repeat(size, axis=1))


def _png(pixels: np.ndarray) -> bytes:
    """Return pixels as a PNG file.

    Args:
        pixels: [H, W, 3], 8 bits each.
    """
    height, width, _ = pixels.shape
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )
