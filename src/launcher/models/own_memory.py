"""Tensors of a model whose elements share memory, such as by `expand`, cannot be written to."""

import torch
from torch import nn

from launcher.errors import ConfigError


def give_own_memory(model: nn.Module) -> None:
    """Replace each buffer whose elements share memory by a copy, since a checkpoint fills it.

    Raises:
        ConfigError: a parameter is such a tensor. No optimizer could update it.
    """
    for name, parameter in model.named_parameters():
        if shares_memory(parameter):
            raise ConfigError(
                f"model: several elements of the parameter {name} share memory, as after expand();"
                " use .clone()."
            )
    copies: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            if id(buffer) not in copies and shares_memory(buffer):
                copies[id(buffer)] = buffer.clone(memory_format=torch.contiguous_format)
            if id(buffer) in copies:
                setattr(module, name, copies[id(buffer)])


def shares_memory(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has more elements than places in memory."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return False
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    places = 1 + sum((size - 1) * stride for size, stride in steps)
    return places < tensor.numel()
