"""Bitwise differences between two checkpoints.

Tensors, counters, and the random state of each rank are compared.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from launcher.checkpoint.shards import as_bytes
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.rundir.history import is_measured

OF_THE_ATTEMPT = ("max_steps", "stop_reason", "attempt")
"""Suffixes of the names of values that say how far to train, and do not change the numbers."""


@dataclass(frozen=True)
class Difference:
    """A tensor or a value that differs between two checkpoints.

    Args:
        name: name of the tensor, or path of the value within its state.
        text: how they differ.
        is_tensor: whether it is a tensor of the model, the optimizer or a hook.
    """

    name: str
    text: str
    is_tensor: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


def differences(first: Path, second: Path) -> list[Difference]:
    """List the differences between two checkpoints, tensors first.

    The number of ranks may differ.

    Raises:
        CorruptCheckpoint: a file has changed since it was written.
    """
    left, right = StoredCheckpoint(first), StoredCheckpoint(second)
    result = list(_of_tensors(left, right))
    result += _of_values("state", left.meta, right.meta)
    for rank in range(min(left.manifest.world_size, right.manifest.world_size)):
        result += _of_values(f"rank {rank}", left.rank_state(rank), right.rank_state(rank))
    return result


def _of_tensors(left: StoredCheckpoint, right: StoredCheckpoint) -> Iterator[Difference]:
    before, after = set(left.names()), set(right.names())
    for name in sorted(before | after):
        if name not in before or name not in after:
            yield Difference(name, "only one of them has it", is_tensor=True)
        elif (text := tensor_difference(left.read(name), right.read(name))) is not None:
            yield Difference(name, text, is_tensor=True)


def tensor_difference(before: torch.Tensor, after: torch.Tensor) -> str | None:
    """Describe the difference between two tensors.

    The text has the number of elements, the first one, and the largest distance.

    Returns:
        None if they are bitwise identical.
    """
    if before.dtype != after.dtype or before.shape != after.shape:
        return f"{after.dtype} {list(after.shape)} instead of {before.dtype} {list(before.shape)}"
    rows = before.numel(), -1
    bits = [
        torch.frombuffer(bytearray(as_bytes(tensor)), dtype=torch.uint8)
        for tensor in (before, after)
        if tensor.numel()
    ]
    if not bits or torch.equal(*bits):
        return None
    unequal = (bits[0].view(rows) != bits[1].view(rows)).any(dim=1)
    at = int(unequal.nonzero()[0])
    index = [int(number) for number in torch.unravel_index(torch.tensor(at), before.shape)]
    old, new = before.reshape(-1), after.reshape(-1)
    text = (
        f"{int(unequal.sum())} of {len(old)} elements, the first at {index}: {new[at].item()!r}"
        " instead of "
    )
    text += repr(old[at].item())
    if before.is_floating_point():
        text += f"; the largest distance is {float((new.double() - old.double()).abs().max()):.3g}"
    return text


def _of_values(name: str, before: object, after: object) -> Iterator[Difference]:
    """The differing leaves of two nested states."""
    if is_measured(name) or name.endswith(OF_THE_ATTEMPT):
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from _of_values(f"{name}/{key}", before.get(key), after.get(key))
    elif isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        if (text := tensor_difference(before, after)) is not None:
            yield Difference(name, text)
    elif (
        isinstance(before, list | tuple)
        and isinstance(after, list | tuple)
        and len(before) == len(after)
    ):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from _of_values(f"{name}/{number}", *pair)
    elif repr(before) != repr(after):
        yield Difference(name, f"{_short(after)} instead of {_short(before)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
