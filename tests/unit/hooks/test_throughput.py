"""Speed, and the FLOPs of devices and models."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from launcher import EvaluationHook
from launcher.hooks.flops import forward_flops, peak_tflops
from launcher.hooks.throughput import ThroughputHook
from launcher.models.gpt import GPT
from support.toy import GOOD, Recorder, Toy


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.zeros(12, 2)


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
    Timed([hook, evaluation, logged], 5, tmp_path, DataLoader(GOOD, 4)).train()  # type: ignore[arg-type]
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


class Bare(list[torch.Tensor]):
    """Batches without the number of their samples."""


class Declaring(Bare):
    batch_samples = 3


def loader_of(rows: int, size: int | None, **options: Any) -> DataLoader[Any]:
    return DataLoader(torch.zeros(rows, 4, 2), size, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batches", "samples"),
    [
        (loader_of(10, 5), [5, 5, 5, 5]),
        (loader_of(8, 5), [3, 5, 3, 5]),
        (loader_of(8, 5, collate_fn=torch.cat), [3, 5, 3, 5]),
        (loader_of(8, 1, num_workers=1), [1, 1, 1, 1]),
        (loader_of(8, None), [1, 1, 1, 1]),
        (DataLoader(Stream(), 6), [6, 6, 6, 6]),
        (Declaring([GOOD]), [3, 3, 3, 3]),
        (Bare([GOOD]), None),
        (DataLoader(Stream(), None), None),
    ],
)
def test_samples_are_counted_by_the_loader_and_tokens_by_num_targets(
    batches, samples, tmp_path, caplog
):
    """The first dimension of a batch is no number of samples."""
    caplog.set_level("INFO")
    logged, now = Recorder(), 0.0

    class Timed(Toy):
        def forward(self, input: torch.Tensor) -> Any:
            nonlocal now
            now += 1
            return super().forward(input)

        def num_targets(self, input: torch.Tensor) -> Any:
            return torch.tensor(7) if samples else None

    Timed([ThroughputHook(1, False, clock=lambda: now), logged], 5, tmp_path, batches).train()
    speeds = [values for _, values in logged.of("throughput")]
    expected = [{"samples_per_second": size, "tokens_per_second": 7} for size in samples or []]
    assert speeds == (expected if samples else [])
    assert ("how many samples a batch of" in caplog.text) == (samples is None)


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
