"""Buffers of a model that is on several ranks: all ranks have rank 0's."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from launcher.strategies.lane_sums import as_bytes, exchange_in_buckets


class SharedBuffers:
    """The persistent buffers of a model, such as the statistics of a batch norm.

    Each rank changes its own in a forward pass. A checkpoint has one set, with which a resumed run
    and each evaluation must agree.
    """

    def __init__(self, model: nn.Module):
        stored = model.state_dict().keys()
        self._places = [
            (module, name)
            for path, module in model.named_modules()
            for name, _ in module.named_buffers(recurse=False)
            if (f"{path}.{name}" if path else name) in stored
        ]

    def share(self) -> None:
        broadcast([getattr(module, name) for module, name in self._places])


def broadcast(tensors: Sequence[torch.Tensor]) -> None:
    """Give all ranks rank 0's values. All ranks must call it."""
    # A backend does not support every dtype.
    exchange_in_buckets(tensors, lambda flat: dist.broadcast(as_bytes(flat), 0))
