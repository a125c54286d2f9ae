"""Sharded tensors (DTensors): which rank writes which shard, and how shards are read back.

They are recognised by their attributes, since importing DTensor takes half a second.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from launcher.process.ranks import Ranks
from launcher.strategies.base import Shape, ShardSpec, TensorReader, Tensors


@dataclass(frozen=True)
class ShardedLike:
    """This rank's shard of values that have the layout of `like`, such as its average."""

    values: torch.Tensor
    like: torch.Tensor

    def whole(self) -> torch.Tensor:
        """Return the full tensor. All ranks of the mesh must call this."""
        if not is_sharded(self.like):
            return self.values
        full = torch.empty_like(self.like, dtype=self.values.dtype)
        local(full).copy_(self.values)
        return whole(full)

    def read(self, saved: TensorReader, name: str) -> None:
        if not is_sharded(self.like):
            saved.read_into(name, self.values)
        elif self.values.numel():
            saved.read_into(name, self.values, _offset(self.like))


def is_sharded(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the full tensor on every rank of its mesh. All of them must call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard, sharing its memory."""
    return tensor.detach().to_local() if is_sharded(tensor) else tensor.detach()  # type: ignore[attr-defined]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's bytes: as values, NaN would differ from itself, and 0.0 equal -0.0."""
    return local(tensor).contiguous().reshape(-1).view(torch.uint8)


def shards_to_write(
    shards: Mapping[str, ShardedLike], ranks: Ranks
) -> tuple[Tensors, dict[str, ShardSpec]]:
    """Return the values that this rank writes, and the positions of those that are shards.

    A plain tensor is written by rank 0, of replicated shards the first replica.
    """
    tensors: Tensors = {}
    parts: dict[str, ShardSpec] = {}
    for name, shard in shards.items():
        like: Any = shard.like
        if not is_sharded(like):
            if ranks.is_main:
                tensors[name] = shard.values
            continue
        placements = zip(like.device_mesh.get_coordinate(), like.placements, strict=True)
        is_copy = any(at for at, placement in placements if placement.is_replicate())
        is_empty = not shard.values.numel() and like.numel()
        if not (ranks.replica or is_copy or is_empty):
            tensors[name] = shard.values
            parts[name] = ShardSpec(tuple(like.shape), _offset(like))
    return tensors, parts


def read_into(saved: TensorReader, name: str, target: torch.Tensor) -> None:
    """Fill `target`, or this rank's shard of it, with the stored values."""
    ShardedLike(local(target), target).read(saved, name)


def zeros_like_shard(param: torch.Tensor, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Make zeros sharded like the parameter if they have its shape, else plain."""
    if shape == tuple(param.shape):
        return torch.zeros_like(param, dtype=dtype, requires_grad=False)
    zeros = torch.zeros(shape, dtype=dtype, device=param.device)
    if not is_sharded(param):
        return zeros
    from torch.distributed.tensor import DTensor, Replicate

    mesh = param.device_mesh  # type: ignore[attr-defined]
    return DTensor.from_local(zeros, mesh, [Replicate()] * mesh.ndim, run_check=False)


@torch.no_grad()
def copy_shard(target: torch.Tensor, source: torch.Tensor) -> None:
    """Fill `target`, or this rank's shard of it, from a full plain tensor."""
    shard = local(target)
    if is_sharded(target):
        offset = _offset(target)
        source = source[
            tuple(slice(start, start + n) for start, n in zip(offset, shard.shape, strict=True))
        ]
    shard.copy_(source)


def _offset(tensor: Any) -> Shape:
    """Return the start of this rank's shard of a DTensor, which is cut as by `torch.chunk`."""
    offset = [0] * tensor.ndim
    shape = list(tensor.shape)
    mesh = tensor.device_mesh
    for rank, ranks, placement in zip(
        mesh.get_coordinate(), mesh.shape, tensor.placements, strict=True
    ):
        if placement.is_shard():
            rows = shape[placement.dim]
            chunk = -(-rows // ranks)
            start = min(rank * chunk, rows)
            offset[placement.dim] += start
            shape[placement.dim] = min(chunk, rows - start)
    return tuple(offset)
