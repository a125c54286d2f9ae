"""Sharded tensors (DTensors): which rank writes which piece, and how pieces are read back.

They are recognised by their attributes: importing DTensor would cost other runs half a second.
"""

from typing import Any

import torch

from launcher.run.ranks import Ranks
from launcher.strategies.base import Part, Saved


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor: one rank's piece, and the placement of all pieces."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor on every rank of its mesh; all of them must call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's piece, sharing its memory."""
    return tensor.detach().to_local() if is_sharded(tensor) else tensor.detach()  # type: ignore[attr-defined]


def piece_to_write(tensor: torch.Tensor, ranks: Ranks) -> tuple[torch.Tensor, Part | None] | None:
    """The piece of a tensor that this rank writes; None if another rank writes the same values, or this rank has none.

    A plain tensor is the same on all ranks, and rank 0 writes it. Of replicated pieces, the first replica is written.
    """
    if not is_sharded(tensor):
        return (tensor.detach(), None) if ranks.is_main else None
    sharded: Any = tensor
    coordinate = sharded.device_mesh.get_coordinate()
    replicas = [at for at, placement in zip(coordinate, sharded.placements, strict=True) if placement.is_replicate()]
    piece = local(tensor)
    if any(replicas) or (not piece.numel() and tensor.numel()):
        return None
    return piece, Part(tuple(tensor.shape), _offset(sharded))


def read_into(saved: Saved, name: str, target: torch.Tensor) -> None:
    """Fill `target` with the stored values; of a DTensor only this rank's piece."""
    if not is_sharded(target):
        saved.read_into(name, target)
    elif (piece := local(target)).numel():
        saved.read_into(name, piece, _offset(target))


def zeros_like_piece(param: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros for a parameter's state: sharded like the parameter if it has its shape, otherwise the same on all
    ranks."""
    if shape == tuple(param.shape):
        return torch.zeros_like(param, dtype=dtype, requires_grad=False)
    zeros = torch.zeros(shape, dtype=dtype, device=param.device)
    if not is_sharded(param):
        return zeros
    from torch.distributed.tensor import DTensor, Replicate

    mesh = param.device_mesh  # type: ignore[attr-defined]
    return DTensor.from_local(zeros, mesh, [Replicate()] * mesh.ndim, run_check=False)


@torch.no_grad()
def copy_piece(target: torch.Tensor, source: torch.Tensor) -> None:
    """Fill `target` from a full plain tensor; of a DTensor this rank's piece."""
    piece = local(target)
    if is_sharded(target):
        offset = _offset(target)
        source = source[tuple(slice(start, start + n) for start, n in zip(offset, piece.shape, strict=True))]
    piece.copy_(source)


def _offset(tensor: Any) -> tuple[int, ...]:
    """Where this rank's piece starts in the full tensor."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(offset)
