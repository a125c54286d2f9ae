"""Every strategy makes the same steps: one table of rows, each trained whole, and again with an
interruption."""

from importlib.util import find_spec
from typing import Any

import pytest

from support.ranks import by_name, task

ROWS = {
    "none": (1, ["strategy=none"]),
    "ddp x2": (2, ["strategy=ddp"]),
    "fsdp x2": (2, ["strategy=fsdp"]),  # replicate x shard = 1 x 2
    # Of two numbers the sum is the same in any order, of four it is not.
    "ddp x4": (4, ["strategy=ddp", "strategy.bucket_cap_mb=0.02"]),
    "hybrid 2x2": (4, ["strategy=fsdp", "strategy.replicate=2"]),
}
if find_spec("deepspeed"):
    # 1 is 2 with whole gradients; 3 is in tests/end_to_end/test_deepspeed.py
    for stage in (0, 2):
        ROWS[f"zero {stage} x2"] = (2, ["strategy=deepspeed", f"strategy.zero_stage={stage}"])
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}
"""Relative. bf16 has 8 bits of mantissa, and the strategies round at different places."""
CLIP = 0.42
PLAIN, LOW, MANY = "fp32 accumulation 1", "bf16 accumulation 3", "fp32 accumulation 3"
OWN = {
    "none": (PLAIN, LOW, MANY),
    "ddp x2": (PLAIN,),
    "fsdp x2": (PLAIN, LOW),
    "ddp x4": (MANY,),
    "hybrid 2x2": (MANY,),
}
"""The settings of a row. The others have one, since they have fp32 elsewhere (`test_deepspeed`)."""
CASES = [(name, setting) for name in ROWS for setting in OWN.get(name, (LOW,))]
INTERRUPTED = [case for case in CASES if case not in {("none", MANY), ("ddp x4", MANY)}]
"""Cases whose training is stopped and resumed; the others only train."""


def overrides(row: str, setting: str) -> list[str]:
    ranks, strategy = ROWS[row]
    precision, _, times = setting.split()
    micro_batch_size = f"trainer.micro_batch_size={12 // int(times) // ranks}"
    clip = f"trainer.max_grad_norm={CLIP}"
    return [*strategy, f"precision={precision}", micro_batch_size, clip]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of each rank, by row and setting."""
    folder = tmp_path_factory.mktemp("matrix")
    tasks = {
        case: task(
            "whole_and_interrupted" if case in INTERRUPTED else "train",
            folder / " ".join(case),
            *overrides(*case),
        )
        for case in CASES
    }
    phases = [
        (ranks, {case: tasks[case] for case in CASES if ROWS[case[0]][0] == ranks})
        for ranks in (1, 2, 4)
    ]
    return {case: found for phase in by_name(folder, *phases) for case, found in phase.items()}


def wholes(results: Any, row: str, setting: str) -> list[dict[str, Any]]:
    """Results of each rank in the training that nothing has interrupted."""
    return [of_rank.get("whole", of_rank) for of_rank in results[row, setting]]


@pytest.mark.parametrize(("row", "setting"), CASES)
def test_strategies_agree(results, row, setting):
    (expected,) = wholes(results, "none", setting)
    close = TOLERANCE[setting.split()[0]]
    assert len(expected["losses"]) == 6
    assert min(expected["norms"]) > 0.1, "nothing to compare"
    assert max(expected["norms"]) > CLIP, "nothing was clipped"
    assert len(set(expected["rates"])) == 6, "the learning rate stands still"
    for found in wholes(results, row, setting):
        assert found["losses"] == pytest.approx(expected["losses"], rel=close)
        assert found["norms"] == pytest.approx(expected["norms"], rel=close)
        assert found["rates"] == expected["rates"]


@pytest.mark.parametrize(("row", "setting"), INTERRUPTED)
def test_an_interruption_leaves_no_trace(results, row, setting):
    for found in results[row, setting]:
        whole, first, second = found["whole"], found["first"], found["second"]
        assert first["stopped"] == 15
        # A signal that comes within an update is agreed on after the next.
        assert 3 <= first["step"] <= 4
        assert (second["stopped"], second["step"]) == (0, 6)
        for key in ("losses", "norms", "rates"):
            assert first[key] + second[key] == whole[key]
        assert second["digest"] == whole["digest"]
    assert len({found["first"]["step"] for found in results[row, setting]}) == 1


@pytest.mark.parametrize(
    ("row", "share"), [("none", 1), ("ddp x2", 1), ("hybrid 2x2", 2), ("fsdp x2", 2)]
)
def test_sharding_really_shards(results, row, share):
    for found in wholes(results, row, OWN[row][0]):
        held = found["bytes"]
        assert held["here"] == pytest.approx(held["all"] / share, rel=0.02)
