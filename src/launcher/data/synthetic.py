"""Synthetic tokens, to try a model, a machine or a loader without data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from launcher.data.base import DataSource
from launcher.data.sampler import mix
from launcher.data.windows import TokenSamples
from launcher.types import NonNegativeInt, PositiveInt


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
        settings = (self.num_val_samples, self.seq_len, self.vocab_size, self.seed)
        return SyntheticTokens(*settings, first=self.num_samples)


@dataclass(eq=False)
class SyntheticTokens(TokenSamples):
    """The samples from `first` on of the endless sequence of `seed`."""

    size: int
    seq_len: int
    vocab_size: int
    seed: int
    first: int = 0

    @property
    def fingerprint(self) -> str:
        text = f"{self.size} synthetic samples of {self.seq_len} tokens below {self.vocab_size}"
        return f"{text}, seed {self.seed}"

    def read(self, indices: np.ndarray) -> np.ndarray:
        positions = np.arange(self.seq_len + 1)
        numbers = mix(self.seed, self.first + indices[:, None], positions[None, :])
        tokens: np.ndarray = (numbers % np.uint64(self.vocab_size)).astype(np.int64)
        return tokens
