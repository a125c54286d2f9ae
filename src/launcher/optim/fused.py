"""Availability of an optimizer's fused kernel."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from launcher.errors import ConfigError

_is_for_any_shard = False


@contextmanager
def kernels_for_any_shard() -> Iterator[None]:
    """Let an optimizer have a fused kernel by default only if shards do not change its numbers.

    On the CPU the last elements round in another way, and elsewhere sharded parameters may get
    another kernel.
    """
    global _is_for_any_shard
    before = _is_for_any_shard
    _is_for_any_shard = True
    try:
        yield
    finally:
        _is_for_any_shard = before


def choose_fused(
    groups: list[dict[str, Any]], wanted: bool | None, takes_sharded: bool = True
) -> bool | None:
    """Return torch's argument `fused`, by default where the device supports it.

    The optimizer itself would fail only at the first step. Without `takes_sharded` the kernel does
    not support sharded parameters.
    """
    if wanted is False:
        return None
    parameters = [p for group in groups for p in group["params"]]
    differs = not takes_sharded or any(p.device.type == "cpu" for p in parameters)
    if _is_for_any_shard and differs and not wanted:
        return None
    reason = _why_not_fused(parameters, takes_sharded)
    if reason:
        if wanted:
            raise ConfigError(
                f"optimizer.fused=true: {reason}; use optimizer.fused=null, which uses the kernel"
                " where it is supported."
            )
        return None
    return True


def _why_not_fused(parameters: list[torch.Tensor], takes_sharded: bool) -> str | None:
    if not takes_sharded and any(hasattr(p, "device_mesh") for p in parameters):
        return "this optimizer's fused kernel does not support sharded parameters"
    kinds = {(p.device.type, p.dtype): None for p in parameters}
    for device, dtype in kinds:
        if not has_fused_kernel(device, dtype):
            return f"torch {torch.__version__} has no fused kernel for {dtype} on {device}"
    return None


@cache
def has_fused_kernel(device_type: str, dtype: torch.dtype) -> bool:
    """Try a step of AdamW, whose fused kernel supports the same tensors as Adam's and SGD's."""
    parameter = torch.zeros(1, device=device_type, dtype=dtype)
    parameter.grad = torch.zeros_like(parameter)
    try:
        torch.optim.AdamW([parameter], fused=True).step()
    except (NotImplementedError, RuntimeError):
        return False
    return True
