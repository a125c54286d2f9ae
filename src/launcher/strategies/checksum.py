"""A checksum of tensors' bits, computed on their device."""

from collections.abc import Iterable

import torch

from launcher.strategies.sharded import local

CHUNK = 1 << 20
"""Number of elements at a time. Their 64-bit copies take this many times 8 bytes."""
MULTIPLIER = 6364136223846793005
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Sum up the bits of this rank's shards modulo 2**64, weighted by their positions: 0-d int64.

    The weights are odd, so a change of any one element always changes the sum. A sum of integers is
    the same in any order, so a device with parallel additions repeats it. Nothing waits for it.
    """
    total: torch.Tensor | None = None
    for tensor in tensors:
        values = local(tensor).resolve_conj().resolve_neg()
        values = torch.view_as_real(values) if values.is_complex() else values
        bits = values.contiguous().reshape(-1).view(INTEGERS[values.element_size()])
        if total is None:
            total = torch.zeros((), dtype=torch.int64, device=bits.device)
        for chunk in bits.split(CHUNK):
            weights = torch.arange(1, 2 * len(chunk) + 1, 2, dtype=torch.int64, device=bits.device)
            total = total * MULTIPLIER + (chunk.long() * weights).sum()
    return torch.zeros((), dtype=torch.int64) if total is None else total
