"""Matrix products in 8 bits (Micikevicius et al. 2022, arXiv:2209.05433), by torchao."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from launcher.errors import ConfigError
from launcher.models.declared import declared_units
from launcher.models.quiet_import import import_quietly
from launcher.optim.precision import Precision

MULTIPLE = 16
"""A GPU's matrix products in fp8 need sizes that are divisible by it."""
CAPABILITY = 8, 9


class Fp8(Precision):
    """bf16, with the linear layers of the model's blocks in fp8.

    Inputs, weights and gradients of these layers are rounded to 8 bits for their matrix products.
    The embedding, the output layer, and layers with a size that 16 does not divide stay bf16.
    Parameters and optimizer state stay fp32 and keep their names.

    Args:
        recipe: tensorwise has one scale for each tensor and is fastest. rowwise has one for each
            row and is more accurate.
        emulate: compute with the rounded values in fp32, on any device. It is for tests, and slow.
    """

    def __init__(
        self, recipe: Literal["tensorwise", "rowwise"] = "tensorwise", emulate: bool = False
    ):
        super().__init__("bf16")
        self.name = "fp8"
        self.peak = "bf16"
        self.recipe = recipe
        self.emulate = emulate

    def setup(self, device: torch.device) -> None:
        super().setup(device)
        if not self.emulate:
            _check_device(device)
        _float8()

    def convert(self, model: nn.Module) -> nn.Module:
        chosen = {id(layer) for layer in _layers(model)}
        if not chosen:
            raise ConfigError(
                f"precision=fp8: {type(model).__name__} has no shard_units() with an nn.Linear"
                f" whose two sizes are divisible by {MULTIPLE}; use precision=bf16."
            )
        total = sum(isinstance(module, nn.Linear) for module in model.modules())
        self.note = f"fp8 ({self.recipe}) in {len(chosen)} of {total} linear layers, else bf16"
        float8 = _float8()
        converted: nn.Module = float8.convert_to_float8_training(
            model,
            module_filter_fn=lambda layer, name: id(layer) in chosen,
            config=replace(
                float8.Float8LinearConfig.from_recipe_name(self.recipe), emulate=self.emulate
            ),
        )
        return converted


def _layers(model: nn.Module) -> Iterator[nn.Linear]:
    for unit in declared_units(model):
        for layer in unit.modules():
            # A subclass has a `forward` of its own, or is not called, as in nn.MultiheadAttention.
            if type(layer) is nn.Linear and not any(size % MULTIPLE for size in layer.weight.shape):
                yield layer


def _check_device(device: torch.device) -> None:
    if device.type != "cuda":
        raise ConfigError(
            f"precision=fp8: a {device.type} device has no fp8; use precision=bf16, or"
            " precision.emulate=true for a test."
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < CAPABILITY:
        has, needs = (".".join(map(str, version)) for version in (capability, CAPABILITY))
        raise ConfigError(
            f"precision=fp8: needs a GPU of compute capability {needs}, and this one has {has};"
            " use precision=bf16."
        )


def _float8() -> Any:
    try:
        return import_quietly("torchao.float8")
    except ImportError as error:
        raise ConfigError(
            "precision=fp8: needs the package torchao; pip install 'torch-launcher[fp8]'."
        ) from error
