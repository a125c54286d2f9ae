"""Norms over the gradients of many parameters, sharded or not."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import get_total_norm

from launcher.strategies.sharded import whole


def by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """One list for plain tensors and one per mesh of sharded tensors: foreach operations do not
    support a mixture."""
    meshes: dict[Any, list[nn.Parameter]] = {}
    for p in parameters:
        meshes.setdefault(getattr(p, "device_mesh", None), []).append(p)
    return list(meshes.values())


def total_norm(groups: list[list[nn.Parameter]]) -> torch.Tensor:
    """2-norm over the gradients of the full model, 0-d; the same number on every rank. All ranks of
    a mesh must call it."""
    norms = [
        whole(get_total_norm([grad for p in params if (grad := p.grad) is not None]))
        for params in groups
    ]
    return norms[0] if len(norms) == 1 else get_total_norm(norms)
