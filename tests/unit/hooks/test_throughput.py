"""Speed, by a scripted clock."""

from typing import Any

import pytest
import torch

from launcher import EvaluationHook
from launcher.hooks.throughput import ThroughputHook, num_tokens
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
    assert (
        "MFU is of 1e-09 TFLOP/s for each device (CPU, fp32, hooks.throughput.peak_tflops)"
        in caplog.text
    )


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
