"""Text: the bytes of any files as tokens. Some of the files are held out."""

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import xxhash

from launcher.data.base import DataSource
from launcher.data.file_patterns import check_files, find_files, hold_out
from launcher.data.windows import TokenWindows
from launcher.types import Patterns, PositiveInt, UnitInterval

STANDARD_LIBRARY = f"{sysconfig.get_path('stdlib')}/[a-z]*.py"
"""The top-level modules of Python's standard library, about 4 MB of source."""


@dataclass(kw_only=True, eq=False)
class TextData(DataSource):
    """Byte-level samples: input [B, T] and target [B, T], int64 in 0..255.

    All bytes are kept in memory.

    Args:
        files: a path or glob, or a list of them. Default null: the top-level modules of Python's
            standard library.
        seq_len: T, bytes of an input.
        val_fraction: share of the files that is held out. If either side would have less than one
            sample, as with a single file, it is a share of the bytes, taken from the end.
        val_samples: samples of the validation set, spread evenly. Default null: all of them.
        vocab_size: always 256; a model's configuration refers to it.
        predict: the same as files, for job=predict.
    """

    seq_len: PositiveInt = 128
    files: Patterns | None = None
    val_fraction: UnitInterval = 0.05
    val_samples: PositiveInt | None = None
    vocab_size: Literal[256] = 256
    predict: Patterns | None = None

    def check(self) -> None:
        check_files(self)

    def train_dataset(self) -> TokenWindows:
        return self._windows(self._parts[0], None).check("data.files")

    def val_dataset(self) -> TokenWindows | None:
        if self.val_fraction:
            return self._windows(self._parts[1], self.val_samples)
        return None

    def predict_dataset(self) -> TokenWindows | None:
        if self.predict is None:
            return None
        data = _read(find_files("data.predict", self.predict))
        return self._windows(data, None).check("data.predict")

    def _windows(self, part: np.ndarray, max_windows: int | None) -> TokenWindows:
        fingerprint = f"{len(part)} bytes, xxh3 {xxhash.xxh3_64_hexdigest(part.data)}"
        return TokenWindows([part], self.seq_len, fingerprint, max_windows)

    @cached_property
    def _parts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return training and held-out bytes: uint8 [N] each."""
        patterns = STANDARD_LIBRARY if self.files is None else self.files
        files = find_files("data.files", patterns)
        train, held_out = (_read(some) for some in hold_out(files, self.val_fraction))
        sample = self.seq_len + 1
        if len(train) < sample or (self.val_fraction and len(held_out) < sample):
            whole = _read(files)
            cut = max(int(len(whole) * self.val_fraction), sample) if self.val_fraction else 0
            train = whole[: len(whole) - cut]
            held_out = whole[len(whole) - cut :]
        return train, held_out


def _read(files: Sequence[Path]) -> np.ndarray:
    contents = [np.fromfile(path, dtype=np.uint8) for path in files]
    return np.concatenate([np.empty(0, dtype=np.uint8), *contents])
