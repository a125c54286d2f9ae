"""Floating-point operations: of a model, by counting, and of a device, by its data sheet."""

import re
from collections.abc import Sequence
from math import prod

import torch

from launcher.hooks.evaluation_mode import evaluating, without_compilation
from launcher.hooks.view import TrainerView

PEAK_TFLOPS: dict[str, tuple[float, float | None, float]] = {
    "B200": (2250, 1100, 75),
    "GH200": (989.4, 494.7, 66.9),
    "H200": (989.4, 494.7, 66.9),
    "H100": (989.4, 494.7, 66.9),
    "H100 NVL": (835, 417.5, 60),
    "H100 PCIe": (756, 378, 51),
    "A100": (312, 156, 19.5),
    "L40S": (362, 183, 91.6),
    "L4": (121, 60, 30.3),
    "V100": (125, None, 15.7),
    "RTX 4090": (165.2, 82.6, 82.6),
    "MI300X": (1307.4, 653.7, 163.4),
    "MI250X": (383, None, 47.9),
}
"""TFLOP/s of dense matrix products (without sparsity) by the vendors' data sheets: bf16 and fp16,
tf32, fp32."""


def peak_tflops(device_name: str, precision: str) -> float | None:
    """Look up a device by its name in torch. None: it, or the precision, is not in the table."""
    parts = device_name.replace("-", " ").replace("_", " ")
    names = [name for name in PEAK_TFLOPS if re.search(rf"\b{name}\b", parts)]
    if not names:
        return None
    half, tf32, fp32 = PEAK_TFLOPS[max(names, key=len)]
    return {"fp32": fp32, "tf32": tf32}.get(precision, half)


def forward_flops(trainer: TrainerView, batch: object) -> int:
    """Count the operations of a forward pass over a batch. All ranks must call it.

    Matrix products, convolutions and attention count, and a multiplication and an addition as two.
    """
    from torch.utils.flop_counter import FlopCounterMode

    # Torch's own table misses the attention of the CPU.
    on_cpu = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention}
    with (
        evaluating(trainer, needs_outputs=False),
        without_compilation(),
        trainer.strategy.forward_context(),
        FlopCounterMode(display=False, custom_mapping=on_cpu) as counter,
    ):
        trainer.forward(batch)
    return int(counter.get_total_flops())


def _attention(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: object, **options: object
) -> int:
    """Shapes [B, heads, T, head_dim] -> operations of the two products."""
    return 2 * prod(query[:-1]) * key[-2] * (key[-1] + value[-1])
