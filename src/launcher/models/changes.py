"""Find the tensors of a model that a forward pass changes."""

from collections.abc import Iterable

import torch
from torch import nn

Named = Iterable[tuple[str, torch.Tensor]]


class Versions:
    """The versions of tensors. Each operation that changes a tensor in place counts its version."""

    def __init__(self, tensors: Named):
        self._before = [
            (name, tensor, tensor._version) for name, tensor in tensors if not tensor.is_inference()
        ]

    def changed(self) -> list[str]:
        """Return the names of the tensors that have changed since."""
        return [name for name, tensor, before in self._before if tensor._version != before]


class Tensors:
    """The parameters and buffers of a model. A buffer may also be replaced by another tensor."""

    def __init__(self, model: nn.Module):
        self._model = model
        self._buffers = dict(model.named_buffers())
        self._versions = Versions([*model.named_parameters(), *self._buffers.items()])

    def changed(self) -> list[str]:
        now = dict(self._model.named_buffers())
        replaced = [name for name, buffer in self._buffers.items() if now.get(name) is not buffer]
        return sorted({*self._versions.changed(), *replaced})


def trained(model: nn.Module) -> Named:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]
