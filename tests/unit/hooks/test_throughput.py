"""Speed, and the FLOPs of devices and models."""

from typing import Any

import pytest
import torch

from launcher import EvaluationHook
from launcher.hooks.flops import forward_flops, peak_tflops
from launcher.hooks.throughput import ThroughputHook, num_tokens
from launcher.models.gpt import GPT
from support.toy import GOOD, Recorder, Toy


def test_samples_flops_and_mfu_without_the_time_of_evaluations(tmp_path, caplog):
    caplog.set_level("INFO")
    logged, now = Recorder(), 0.0

    class Timed(Toy):
        def forward(self, input: torch.Tensor) -> Any:
            nonlocal now
            now += 0.5 if self.model.training else 100
            return super().forward(input)

    hook = ThroughputHook(interval=2, peak_tflops=1e-9, clock=lambda: now)
    evaluation = EvaluationHook(1, lambda: [GOOD])
    Timed([hook, evaluation, logged], 5, tmp_path, [GOOD]).train()
    speeds = dict(logged.of("throughput"))
    assert list(speeds) == [2, 4, 5]
    flops = 3 * 2 * (2 * 2 + 2)  # two operations for each weight, three passes
    for values in speeds.values():
        assert values["samples_per_second"] == pytest.approx(8)
        assert values["tflops_per_second"] == pytest.approx(8 * flops / 1e12)
        assert values["mfu"] == pytest.approx(8 * flops / 1e3)
        assert "tokens_per_second" not in values
    peak = "MFU is of 1e-09 TFLOP/s for each device (CPU, fp32, hooks.throughput.peak_tflops)"
    assert peak in caplog.text


def test_without_a_known_peak_there_is_no_mfu(tmp_path, caplog):
    caplog.set_level("INFO")
    logged = Recorder()
    Toy([ThroughputHook(1), logged], 2, tmp_path).train()
    ((_, values),) = logged.of("throughput")
    assert "mfu" not in values and values["tflops_per_second"] > 0
    assert "The peak of this device (CPU) is not known: no MFU" in caplog.text


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ((torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2)), 6),
        ({"ids": torch.zeros(2, 4, dtype=torch.int32)}, 8),
        ((torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64)), None),
        (torch.zeros(2, dtype=torch.int64), None),
        ("text", None),
    ],
)
def test_tokens_of_a_batch(batch, expected):
    assert num_tokens(batch) == expected


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
