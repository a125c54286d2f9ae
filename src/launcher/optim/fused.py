"""Whether an optimizer's fused kernel can be used."""

from typing import Any

import torch

from launcher.errors import ConfigError


def fused_or_not(groups: list[dict[str, Any]], wanted: bool | None, takes_sharded: bool = True) -> bool | None:
    """The argument `fused` for a torch optimizer, which itself would fail only at the first step.

    Args:
        takes_sharded: the kernel supports sharded parameters, as those of Adam and AdamW do.
    Raises:
        ConfigError: it is required but not supported.
    """
    if wanted is False:
        return None
    kernels = fused_devices()
    parameters = [p for group in groups for p in group["params"]]
    if not takes_sharded and any(hasattr(p, "device_mesh") for p in parameters):
        if wanted:
            raise ConfigError(
                "optimizer.fused=true: this optimizer's fused kernel does not support sharded parameters; use "
                "optimizer.fused=null, or strategy=ddp."
            )
        return None
    missing = next((p for p in parameters if p.device.type not in kernels or not p.is_floating_point()), None)
    if missing is None:
        return True
    if wanted:
        raise ConfigError(
            f"optimizer.fused=true: torch {torch.__version__} has no fused kernel for {missing.dtype} on "
            f"{missing.device.type}; use optimizer.fused=null, which uses the kernel where it is supported."
        )
    return None


def fused_devices() -> list[str]:
    """Kinds of devices that have fused Adam, AdamW and SGD."""
    try:
        # There is no public function for this. Where torch has moved it: the devices of torch 2.6.
        from torch.utils._foreach_utils import _get_fused_kernels_supported_devices as devices
    except ImportError:
        return ["cuda", "cpu"]
    return devices()
