"""Number formats of a model's computations, and the scaler that fp16 needs."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import nn

from launcher.errors import ConfigError
from launcher.types import PositiveFloat, PositiveInt

_NULL = nullcontext()
DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


class Precision:
    """fp32, tf32 (fp32 with TensorFloat-32 matrix products on CUDA), bf16 or fp16.

    Parameters and optimizer state stay fp32. bf16 and fp16 use autocast, or the strategy's own
    mixed precision.

    Args:
        name: the format.
        init_scale: for fp16 only, the first loss scale.
        growth_interval: for fp16 only, the steps without overflow until the scale doubles.
    """

    note: str = ""
    """A line in the summary of a run about a model that `convert` has changed."""

    def __init__(
        self,
        name: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32",
        init_scale: PositiveFloat = 65536.0,
        growth_interval: PositiveInt = 2000,
    ):
        self.name: str = name
        # With its peak, the operations of a second are compared.
        self.peak: str = name
        self.dtype = DTYPES[name]
        self.is_mixed = self.dtype is not torch.float32
        self.init_scale = init_scale
        self.growth_interval = growth_interval

    def convert(self, model: nn.Module) -> nn.Module:
        """Replace layers of a new model, whose parameters keep their names."""
        return model

    @property
    def needs_scaler(self) -> bool:
        return self.dtype is torch.float16

    def retries(self, max_retries: int | None) -> bool:
        """Return whether a step with a non-finite gradient is repeated; a scaler skips it."""
        return max_retries is not None and not self.needs_scaler

    def setup(self, device: torch.device) -> None:
        """Apply the settings that are global to the process."""
        if self.name == "tf32" and device.type != "cuda":
            raise ConfigError(
                f"precision=tf32: a {device.type} device has no TensorFloat-32; use precision=fp32."
            )
        if self.name == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise ConfigError("precision=bf16: this GPU has no bf16; use precision=fp16 or fp32.")
        torch.set_float32_matmul_precision("high" if self.name == "tf32" else "highest")
        if device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = self.name == "tf32"

    def autocast(self, device: torch.device) -> AbstractContextManager[None]:
        if not self.is_mixed:
            return _NULL
        return torch.autocast(device.type, dtype=self.dtype)

    def scaler(self, device: torch.device) -> torch.amp.GradScaler:
        """Return the loss scaler. It is enabled only for fp16, since bf16 has fp32's range."""
        return torch.amp.GradScaler(
            device.type,
            init_scale=self.init_scale,
            growth_interval=self.growth_interval,
            enabled=self.needs_scaler,
        )
