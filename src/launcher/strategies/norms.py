"""Norms over the gradients of many parameters, sharded or not."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import get_total_norm

from launcher.process.ranks import gather_tensors
from launcher.strategies.sharded import is_sharded, local, whole

BLOCK = 1 << 20
"""Elements whose squares are held at once, unless a single row has more."""


def by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group plain tensors and each mesh's, since foreach operations do not support a mixture."""
    meshes: dict[object, list[nn.Parameter]] = {}
    for p in parameters:
        meshes.setdefault(getattr(p, "device_mesh", None), []).append(p)
    return list(meshes.values())


def total_norm(groups: list[list[nn.Parameter]]) -> torch.Tensor:
    """Compute the 2-norm over the full gradients, 0-d. All ranks of a mesh must call it."""
    norms = [
        whole(get_total_norm([grad for p in params if (grad := p.grad) is not None]))
        for params in groups
    ]
    return norms[0] if len(norms) == 1 else get_total_norm(norms)


@torch.no_grad()
def row_norm(groups: list[list[nn.Parameter]]) -> torch.Tensor:
    """Compute `total_norm`, bitwise identical for all shardings along the first dimension.

    Each row is full on one rank. Its squares are added in an order that depends only on its length,
    and then the sums of all rows in their order. A reduction kernel would choose an order by the
    number of rows.
    """
    squares = [
        _all_rows([grad for p in params if (grad := p.grad) is not None]) for params in groups
    ]
    filled = [rows for rows in squares if len(rows)]
    if filled:
        return torch.cat(filled).sum().sqrt().float()
    return torch.zeros(())


def _all_rows(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of squares of each row of the full gradients, in order, on every rank."""
    if not gradients:
        return torch.empty(0)
    shards = [local(gradient) for gradient in gradients]
    squares = torch.cat([row_squares(_as_matrix(shard)) for shard in shards])
    first: Any = gradients[0]
    if not is_sharded(first) or (count := first.device_mesh.size()) == 1:
        return squares
    rows = [gradient.shape[0] for gradient in gradients]
    # Shares are ordered by rank and gradient, as `torch.chunk` divides them.
    shares = [[_share(n, rank, count) for n in rows] for rank in range(count)]
    longest = max(map(sum, shares))
    padded = squares.new_zeros(longest)
    padded[: len(squares)] = squares
    gathered = gather_tensors(padded, first.device_mesh.get_group())
    parts = [
        part[: sum(of_rank)].split(of_rank) for part, of_rank in zip(gathered, shares, strict=True)
    ]
    return torch.cat([part for of_gradient in zip(*parts, strict=True) for part in of_gradient])


def _share(rows: int, rank: int, count: int) -> int:
    chunk = -(-rows // count)
    return max(0, min(chunk, rows - rank * chunk))


def _as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    rows = tensor.shape[0] if tensor.dim() else 1
    if tensor.is_complex():
        # The squares of both parts add up to the square of the magnitude.
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.numel():
        return tensor.reshape(rows, -1)
    return tensor.new_empty(0, 1)


def row_squares(matrix: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares of each row, in double precision."""
    if not matrix.numel():
        return _wide(matrix.new_empty(0))
    dtype = torch.promote_types(matrix.dtype, torch.float32)
    blocks = matrix.split(max(1, BLOCK // matrix.shape[1]))
    return torch.cat([_fold(block.to(dtype).square()) for block in blocks])


def _fold(values: torch.Tensor) -> torch.Tensor:
    """Sum [rows, n] over n by halves, in place."""
    while (width := values.shape[1]) > 1:
        half = width // 2
        if width % 2:
            values[:, 0] += values[:, -1]
        values = values[:, :half].add_(values[:, half : 2 * half])
    return _wide(values[:, 0])


def _wide(values: torch.Tensor) -> torch.Tensor:
    """Convert to double precision, which mps does not have."""
    return values if values.device.type == "mps" else values.double()
