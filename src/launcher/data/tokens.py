"""Memory-mapped files of token ids, which may be larger than memory; `write_tokens` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from launcher.data.base import DataSource
from launcher.data.file_patterns import check_files, find_files
from launcher.data.windows import TokenWindows
from launcher.errors import ConfigError
from launcher.types import Patterns, PositiveInt


@dataclass(kw_only=True, eq=False)
class TokenData(DataSource):
    """Samples of token files: input [B, T] and target [B, T], int64.

    No sample crosses from one file into another.

    Args:
        files: a path or glob, or a list of them, of `.npy` files (which contain their type) or of
            raw files of type `dtype`.
        val_files: the same for the held-out samples. Default null: none.
        seq_len: T, tokens of an input.
        vocab_size: number of different tokens. A larger token id is an error when it is read.
        dtype: type of raw (not `.npy`) files, little-endian.
        predict: the same as files, for job=predict.
    """

    files: Patterns
    vocab_size: PositiveInt
    val_files: Patterns | None = None
    seq_len: PositiveInt = 128
    dtype: Literal["uint16", "uint32"] = "uint16"
    predict: Patterns | None = None

    def check(self) -> None:
        check_files(self)

    def train_dataset(self) -> TokenWindows:
        return self._windows("files", self.files)

    def val_dataset(self) -> TokenWindows | None:
        if self.val_files is None:
            return None
        return self._windows("val_files", self.val_files)

    def predict_dataset(self) -> TokenWindows | None:
        if self.predict is None:
            return None
        return self._windows("predict", self.predict)

    def _windows(self, name: str, patterns: Patterns) -> TokenWindows:
        files = find_files(f"data.{name}", patterns)
        windows = MappedWindows(files, self.seq_len, self.vocab_size, self.dtype, f"data.{name}")
        return windows.check(f"data.{name}")


class MappedWindows(TokenWindows):
    """Windows of memory-mapped files. Only the paths are pickled for a worker."""

    def __init__(
        self, files: list[Path], seq_len: int, vocab_size: int, dtype: str, key: str = "data.files"
    ):
        sequences = [map_tokens(path, dtype, key) for path in files]
        super().__init__(sequences, seq_len, _fingerprint(sequences))
        self.arguments = (files, seq_len, vocab_size, dtype, key)
        self.files = files
        self.key = key
        self.vocab_size = vocab_size

    def __reduce__(self) -> Any:
        return MappedWindows, self.arguments

    def read(self, indices: np.ndarray) -> np.ndarray:
        tokens = super().read(indices)
        largest = int(tokens.max())
        if largest >= self.vocab_size:
            raise ConfigError(
                f"data.vocab_size={self.vocab_size}: the files of {self.key} hold token {largest};"
                f" use files of the model's tokenizer; a new model takes {largest + 1} or more."
            )
        return tokens


def map_tokens(path: Path, dtype: str, key: str) -> np.ndarray:
    """Map the tokens of one file, uint16 or uint32 [N]; `key` names the file, for messages."""
    if path.suffix == ".npy":
        try:
            tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise ConfigError(f"{key}: {path} is not a .npy file of tokens ({error}).") from error
        if tokens.ndim != 1 or tokens.dtype not in (np.uint16, np.uint32):
            raise ConfigError(
                f"{key}: {path} holds {tokens.dtype} of shape {list(tokens.shape)}; tokens are one"
                " row of uint16 or uint32, see `python -m launcher.data.write_tokens`."
            )
    else:
        stored_dtype = np.dtype(dtype).newbyteorder("<")
        size = path.stat().st_size
        if size == 0 or size % stored_dtype.itemsize:
            raise ConfigError(
                f"data.dtype={dtype}: {path} has {size} bytes, not a whole number of tokens."
            )
        tokens = np.memmap(path, dtype=stored_dtype, mode="r")
    # Slices of a memmap object are slow to make.
    array: np.ndarray = tokens.view(np.ndarray)
    return array


def _fingerprint(sequences: list[np.ndarray]) -> str:
    """Hash the lengths, and 2^18 tokens at the ends of each file, which may have 100 GB."""
    digest = xxhash.xxh3_64()
    for sequence in sequences:
        digest.update(f"{len(sequence)} {sequence.dtype}".encode())
        digest.update(sequence[: 2**18].tobytes())
        digest.update(sequence[-(2**18) :].tobytes())
    return f"{sum(map(len, sequences))} tokens, xxh3 {digest.hexdigest()}"
