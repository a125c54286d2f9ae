"""Batches of a loader, for comparisons."""

from itertools import islice
from typing import Any

import torch


def take(loader: Any, count: int) -> list[Any]:
    """Return the first batches of a loader; its workers are gone afterwards."""
    batches = iter(loader)
    try:
        return list(islice(batches, count))
    finally:
        batches.close()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
