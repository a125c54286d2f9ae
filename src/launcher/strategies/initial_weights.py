"""Initial weights, which are the same under every strategy and on any number of ranks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import nn

from launcher.process import ranks
from launcher.process.rng import restore_rng, rng_state
from launcher.strategies.shard_units import own_parameters

META = torch.device("meta")
UNSET = 0xFF
"""Byte that fills memory that has not been written yet. It is NaN in every floating-point format,
and -1 in signed integers."""


def build(
    build_model: Callable[[], nn.Module], build_on: torch.device, device: torch.device
) -> nn.Module:
    """Build a model with rank 0's random numbers, so that all ranks have the same weights."""
    with same_draws():
        return draw(build_model, build_on, device)


def draw(
    build_model: Callable[[], nn.Module], build_on: torch.device, device: torch.device
) -> nn.Module:
    """Build a model and initialize its weights on `device`.

    `init_weights()`, if the model has it, starts from the same random state as the constructor.
    Values that a constructor computes are lost on the meta device. So a model built there is kept
    only if its `init_weights()` sets every tensor. Otherwise it is built again, on `device`.
    """
    start = rng_state()
    if build_on == META:
        model = outline(build_model)
        restore_rng(start)
        if model is not None and _is_set_by_init_weights(model, device):
            return model
        restore_rng(start)
    with device:
        model = build_model()
    model.to(device)
    if hasattr(model, "init_weights"):
        restore_rng(start)
        model.init_weights()  # type: ignore[operator]
    return model


def outline(build_model: Callable[[], nn.Module]) -> nn.Module | None:
    """Return the model on the meta device, or None if its constructor needs real values."""
    try:
        with META:
            model = build_model()
    except Exception:
        # Any other error is raised again when the model is built on a real device.
        return None
    values = (value for module in model.modules() for value in vars(module).values())
    has_unregistered = any(isinstance(value, torch.Tensor) and value.is_meta for value in values)
    return None if has_unregistered else model


def _is_set_by_init_weights(model: nn.Module, device: torch.device) -> bool:
    """Return whether `init_weights()` sets every tensor, which are allocated first."""
    if not hasattr(model, "init_weights"):
        return False
    materialise(model, device)
    model.init_weights()  # type: ignore[operator]
    return not any(
        _has_unset(tensor.detach()) for tensor in chain(model.parameters(), model.buffers())
    )


def _has_unset(tensor: torch.Tensor) -> bool:
    if tensor.is_floating_point() or tensor.is_complex():
        return bool((tensor.float() if tensor.element_size() == 1 else tensor).isnan().any())
    bit_patterns = (
        tensor.contiguous()
        .reshape(-1)
        .view(torch.uint8)
        .view(tensor.numel(), tensor.element_size())
    )
    return bool((bit_patterns == UNSET).all(1).any())


def materialise(model: nn.Module, device: torch.device) -> None:
    """Fill a meta model's tensors with `UNSET`; unlike with `to_empty`, tied ones stay tied."""
    made: dict[int, Any] = {}
    for module in model.modules():
        buffers = module.named_buffers(recurse=False, remove_duplicate=False)
        for name, tensor in [*own_parameters(module), *buffers]:
            if not tensor.is_meta and tensor.device == device:
                continue
            if id(tensor) not in made:
                data = _unset_like(tensor, device) if tensor.is_meta else tensor.detach().to(device)
                is_parameter = isinstance(tensor, nn.Parameter)
                made[id(tensor)] = (
                    nn.Parameter(data, tensor.requires_grad) if is_parameter else data
                )
                # It is kept alive, so that no other tensor gets its id.
                made[-id(tensor)] = tensor
            setattr(module, name, made[id(tensor)])


def _unset_like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    made = torch.empty_like(tensor, device=device, requires_grad=False)
    made.untyped_storage().fill_(UNSET)  # type: ignore[attr-defined]
    return made


@contextmanager
def same_draws() -> Iterator[None]:
    """Let every rank draw rank 0's random numbers, then restore the others' own state."""
    saved = rng_state()
    restore_rng(ranks.broadcast(saved))
    try:
        yield
    finally:
        if ranks.rank() != 0:
            restore_rng(saved)
