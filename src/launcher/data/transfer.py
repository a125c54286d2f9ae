"""Move batches to a device."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

import torch


def map_tensors(
    batch: object,
    function: Callable[[torch.Tensor], object],
    movable: Callable[[Any], object] | None = None,
) -> Any:
    """Apply `function` to the tensors of a tree, and `movable` to other objects with `.to`."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if hasattr(batch, "to"):
        return movable(batch) if movable else batch
    if isinstance(batch, Mapping):
        return {key: map_tensors(value, function, movable) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(value, function, movable) for value in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(map_tensors(value, function, movable) for value in batch)
    return batch


def on_device(batches: Iterable[object], device: torch.device) -> Iterator[Any]:
    """Yield the batches on `device`. The caller closes `batches`."""
    if device.type == "cpu":
        return iter(batches)
    # Only from page-locked memory, as `pin_batches` makes it, is a copy ready in time.
    is_pinned = device.type == "cuda"
    return (
        map_tensors(
            batch,
            lambda tensor: tensor.to(device, non_blocking=is_pinned),
            lambda other: other.to(device),
        )
        for batch in batches
    )


def pin_batches(batches: Iterable[object]) -> Generator[object, None, None]:
    """Yield the batches in page-locked memory, so that the host does not wait for their copies."""
    return (map_tensors(batch, torch.Tensor.pin_memory) for batch in batches)
