"""Micro-batches of unequal numbers of targets: each counts by its share of the targets of the whole step."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from launcher.run import ranks


def target_weights(counts: Sequence[torch.Tensor | int], device: torch.device) -> list[torch.Tensor]:
    """A factor for each micro-batch of this rank.

    The mean over all micro-batches and ranks of (factor times mean loss of a micro-batch) is the mean over all targets.
    A factor is exactly 1 where all counts are equal. All ranks must call it; nothing waits for the device.
    """
    dtype = torch.float32 if device.type == "mps" else torch.float64
    own = torch.stack([torch.as_tensor(count, dtype=dtype, device=device) for count in counts])
    total = ranks.sum_over_ranks(own.sum())
    return list((own * (len(counts) * ranks.world_size()) / total.clamp(min=1)).unbind())


def weigh(value: Any, weight: torch.Tensor) -> Any:
    """Numbers and tensors times `weight`, also in nested records; anything else as it is."""
    if isinstance(value, Mapping):
        return {key: weigh(item, weight) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        if value.dtype in (torch.float16, torch.bfloat16):
            value = value.float()  # the factor has more digits
        return value * (weight.to(value.dtype) if value.is_floating_point() else weight)
    return value * weight if isinstance(value, (int, float)) else value
