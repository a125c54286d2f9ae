"""Long sequences of token ids, cut into the samples of a language model."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Self

import numpy as np

from launcher.data.batched import BatchDataset
from launcher.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


class TokenSamples(BatchDataset):
    """Samples of `seq_len` tokens, as (input, target shifted by one token)."""

    def get_batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        import torch

        tokens = torch.from_numpy(self.read(indices))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    @abstractmethod
    def read(self, indices: np.ndarray) -> np.ndarray:
        """Read the samples, each with one more token: int64 [B, seq_len + 1]."""


class TokenWindows(TokenSamples):
    """Sample i is the i-th window of `seq_len` tokens.

    Windows of one sequence overlap only in the token that ends a target and begins the next input.
    A last part shorter than `seq_len + 1` is left out.

    Args:
        sequences: one-dimensional arrays of unsigned integers, in memory or memory-mapped.
        seq_len: T, tokens of an input.
        fingerprint: changes when the tokens do.
        max_windows: use at most this many windows, spread evenly. Default None: all.
    """

    def __init__(
        self,
        sequences: list[np.ndarray],
        seq_len: int,
        fingerprint: str,
        max_windows: int | None = None,
    ):
        self.sequences = sequences
        self.seq_len = seq_len
        self.fingerprint = fingerprint
        # Number of windows up to the end of each sequence.
        self.ends = np.cumsum([max(0, (len(sequence) - 1) // seq_len) for sequence in sequences])
        self.count = int(self.ends[-1]) if len(self.ends) else 0
        self.size = self.count if max_windows is None else min(self.count, max_windows)

    def check(self, key: str) -> Self:
        """Raise a ConfigError for the files of a key that have no sample."""
        if not self.size:
            raise ConfigError(
                f"data.seq_len={self.seq_len}: the files of {key} hold no sample of"
                f" {self.seq_len + 1} tokens; use a smaller data.seq_len, or more files."
            )
        return self

    def read(self, indices: np.ndarray) -> np.ndarray:
        if self.size < self.count:
            indices = indices * self.count // self.size
        tokens = np.empty((len(indices), self.seq_len + 1), dtype=np.int64)
        which = np.searchsorted(self.ends, indices, side="right").tolist()
        for row, (index, number) in enumerate(zip(indices.tolist(), which, strict=True)):
            start = (index - (int(self.ends[number - 1]) if number else 0)) * self.seq_len
            tokens[row] = self.sequences[number][start : start + self.seq_len + 1]
        return tokens
