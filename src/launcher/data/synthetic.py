"""Synthetic tokens, to try a model, a machine or a loader without data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from launcher.data.base import DataSource
from launcher.data.sampler import mix
from launcher.types import NonNegativeInt, PositiveInt

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(kw_only=True, eq=False)
class SyntheticData(DataSource):
    """Random tokens, each sample a function of (seed, index): input and target [B, T], int64.

    A model can only memorize them: the validation loss stays near log(vocab_size).

    Args:
        num_samples, num_val_samples: sizes of the training and validation sets. With 0 validation
            samples there is no validation set.
        seq_len: T, tokens of an input.
        seed: seed of the tokens, which the experiment's seed does not change.
    """

    vocab_size: PositiveInt = 256
    seq_len: PositiveInt = 128
    num_samples: PositiveInt = 8192
    num_val_samples: NonNegativeInt = 256
    seed: NonNegativeInt = 0

    def train_dataset(self) -> SyntheticTokens:
        return SyntheticTokens(self.num_samples, self.seq_len, self.vocab_size, self.seed)

    def val_dataset(self) -> SyntheticTokens | None:
        if not self.num_val_samples:
            return None
        # The validation samples follow the last training sample.
        first = self.num_samples
        return SyntheticTokens(
            self.num_val_samples, self.seq_len, self.vocab_size, self.seed, first
        )


class SyntheticTokens:
    """The samples from `first` on of the endless sequence of `seed`."""

    def __init__(self, size: int, seq_len: int, vocab_size: int, seed: int, first: int = 0):
        self.size = size
        self.seq_len = seq_len
        self.vocab_size = vocab_size
        self.seed = seed
        self.first = first
        self.fingerprint = (
            f"{size} synthetic samples of {seq_len} tokens below {vocab_size}, seed {seed}"
        )

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < self.size:
            raise IndexError(f"sample {index} of {self.size}")
        inputs, targets = self.get_batch(np.array([index]))
        return inputs[0], targets[0]

    def get_batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        import torch

        positions = np.arange(self.seq_len + 1)
        drawn = mix(self.seed, self.first + indices[:, None], positions[None, :]) % np.uint64(
            self.vocab_size
        )
        tokens = torch.from_numpy(drawn.astype(np.int64))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
