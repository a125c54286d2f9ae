"""FLOPs of devices and models."""

from typing import Any

import pytest
import torch

from launcher.hooks.flops import forward_flops, peak_tflops
from launcher.models.gpt import GPT
from support.toy import Toy


@pytest.mark.parametrize(
    ("name", "precision", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA L40S", "fp16", 362),
        ("Tesla V100-SXM2-16GB", "tf32", None),
        ("NVIDIA A10G", "bf16", None),
        ("Unknown", "bf16", None),
    ],
)
def test_peaks_by_name(name, precision, expected):
    assert peak_tflops(name, precision) == expected


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_operations_of_a_transformer(tmp_path, dropout):
    """Products of weights: two operations for each weight and token. Attention: QK^T and AV, over
    all T^2 pairs."""
    batch, length, dim, layers = 3, 16, 32, 2

    class Language(Toy):
        def build_model(self) -> torch.nn.Module:
            model = GPT(64, length, dim=dim, num_layers=layers, num_heads=2, dropout=dropout)
            model.init_weights()
            return model

        def forward(self, input: torch.Tensor) -> Any:
            return self.model((input, input))

    trainer = Language([], 1, tmp_path, [torch.zeros(batch, length, dtype=torch.int64)])
    trainer.build()
    matrices = sum(p.numel() for p in trainer.model.parameters() if p.dim() == 2)
    expected = 2 * matrices * batch * length + layers * 2 * 2 * batch * length**2 * dim
    before = torch.get_rng_state()
    assert forward_flops(trainer, trainer.batches[0]) == expected
    assert trainer.model.training and torch.equal(before, torch.get_rng_state())
