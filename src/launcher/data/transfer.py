"""Move batches to a device; on CUDA the next one is copied while the current one is used."""

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

    def move(value: Any) -> object:
        return value.to(device)

    if device.type == "cpu":
        return iter(batches)
    if device.type == "cuda":
        return _prefetch(batches, device)
    return (map_tensors(batch, move, move) for batch in batches)


def pin_batches(batches: Iterable[object]) -> Generator[object, None, None]:
    """Yield the batches in page-locked memory, so that copying them can overlap with computing."""
    return (map_tensors(batch, torch.Tensor.pin_memory) for batch in batches)


def _prefetch(batches: Iterable[object], device: torch.device) -> Iterator[object]:
    """Copy one batch ahead. Its copy is enqueued before the current batch is yielded."""
    stream = torch.cuda.Stream(device)
    ahead = None
    for batch in batches:
        with torch.cuda.stream(stream):
            copied = map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))
        following = (copied, stream.record_event())
        if ahead is not None:
            yield _wait_for_copy(*ahead, device)
        ahead = following
    if ahead is not None:
        yield _wait_for_copy(*ahead, device)


def _wait_for_copy(batch: object, copied: torch.cuda.Event, device: torch.device) -> object:
    """Let the computing stream wait for the copy, and keep the memory until it is used."""
    current = torch.cuda.current_stream(device)
    current.wait_event(copied)

    def use(tensor: torch.Tensor) -> torch.Tensor:
        tensor.record_stream(current)
        return tensor

    return map_tensors(batch, use, lambda other: other.to(device))
