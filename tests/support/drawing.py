"""A model that draws random numbers in evaluation, as a variational autoencoder does."""

import random
from typing import Any

import numpy as np
import torch

from launcher.data.digits import load_digits
from launcher.models.mlp import MLP


class Drawing(MLP):
    """Shifts the logits of a batch in evaluation by numbers of all three generators."""

    def logits(self, input: torch.Tensor) -> torch.Tensor:
        logits: Any = super().logits(input)
        if not self.training:
            shift = random.random() + np.random.random()
            logits = logits + shift * torch.randn_like(logits)
        return logits


def samples(size: int = 100) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The first digits."""
    x, y = load_digits()
    return [(torch.from_numpy(x[i]), torch.tensor(int(y[i]))) for i in range(size)]
