"""Every strategy makes the same steps: one table of rows, each trained whole, and again with an
interruption."""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

from support.ranks import together


@dataclass(frozen=True)
class Row:
    """A strategy on a number of ranks; `needs` a package that may not be installed."""

    ranks: int
    overrides: tuple[str, ...]
    needs: str = "torch"


ROWS = {
    "none": Row(1, ("strategy=none",)),
    "ddp x2": Row(2, ("strategy=ddp",)),
    "fsdp x2": Row(2, ("strategy=fsdp",)),  # replicate x shard = 1 x 2
    # Of two numbers the sum is the same in any order, of four it is not.
    "ddp x4": Row(4, ("strategy=ddp", "strategy.bucket_cap_mb=0.02")),
    "hybrid 2x2": Row(4, ("strategy=fsdp", "strategy.replicate=2")),
    **{
        f"zero {n} x2": Row(2, ("strategy=deepspeed", f"strategy.zero_stage={n}"), "deepspeed")
        for n in (0, 2)  # 1 is 2 with whole gradients; 3 is in tests/end_to_end/test_deepspeed.py
    },
}
SETTINGS = {
    f"{precision} accumulation {times}": (f"precision={precision}", times)
    for precision in ("fp32", "bf16")
    for times in (1, 3)
}
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}
"""Relative. bf16 has 8 bits of mantissa, and the strategies round at different places."""
CLIP = 0.42
FEW = ("fp32 accumulation 1", "bf16 accumulation 3")
ONE = ("fp32 accumulation 3",)
"""With four ranks, which cost most. Here the tolerance is that of fp32."""
OWN: dict[str, tuple[str, ...]] = {
    "none": (*FEW, *ONE),
    "ddp x2": FEW,
    "fsdp x2": FEW,
    "ddp x4": ONE,
    "hybrid 2x2": ONE,
}
"""The settings of a row. The others have one, since they are variants of these, or have fp32
elsewhere (`test_deepspeed`)."""
CASES = [
    (name, setting)
    for name, row in ROWS.items()
    if find_spec(row.needs)
    for setting in OWN.get(name, FEW[1:])
]


def overrides(row: Row, setting: str) -> list[str]:
    precision, times = SETTINGS[setting]
    micro_batch_size = f"trainer.micro_batch_size={12 // times // row.ranks}"
    return [*row.overrides, precision, micro_batch_size, f"trainer.max_grad_norm={CLIP}"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """`results(row, setting)`: what each rank found. All rows of one number of ranks are done at
    once."""

    @cache
    def of(ranks: int) -> dict[tuple[str, str], list[dict[str, Any]]]:
        folder = tmp_path_factory.mktemp(f"ranks-{ranks}")
        cases = [case for case in CASES if ROWS[case[0]].ranks == ranks]
        tasks = [
            (
                "whole_and_interrupted",
                {"folder": str(folder / str(i)), "overrides": overrides(ROWS[row], setting)},
            )
            for i, (row, setting) in enumerate(cases)
        ]
        return dict(zip(cases, together(ranks, folder, tasks), strict=True))

    return lambda row, setting: of(ROWS[row].ranks)[row, setting]


@pytest.mark.parametrize(("row", "setting"), CASES)
def test_strategies_agree(results, row, setting):
    expected = results("none", setting)[0]["whole"]
    close = TOLERANCE[setting.split()[0]]
    assert len(expected["losses"]) == 6
    assert min(expected["norms"]) > 0.1, "nothing to compare"
    assert max(expected["norms"]) > CLIP, "nothing was clipped"
    assert len(set(expected["rates"])) == 6, "the learning rate stands still"
    for found in (one["whole"] for one in results(row, setting)):
        assert found["losses"] == pytest.approx(expected["losses"], rel=close)
        assert found["norms"] == pytest.approx(expected["norms"], rel=close)
        assert found["rates"] == expected["rates"]


@pytest.mark.parametrize(("row", "setting"), CASES)
def test_an_interruption_leaves_no_trace(results, row, setting):
    for found in results(row, setting):
        whole, first, second = found["whole"], found["first"], found["second"]
        assert first["stopped"] == 15
        # A signal that comes within an update is agreed on after the next.
        assert 3 <= first["step"] <= 4
        assert (second["stopped"], second["step"]) == (0, 6)
        for key in ("losses", "norms", "rates"):
            assert first[key] + second[key] == whole[key]
        assert second["digest"] == whole["digest"]


@pytest.mark.parametrize(
    ("row", "share"), [("none", 1), ("ddp x2", 1), ("hybrid 2x2", 2), ("fsdp x2", 2)]
)
def test_sharding_really_shards(results, row, share):
    for found in results(row, OWN[row][0]):
        held = found["whole"]["bytes"]
        assert held["here"] == pytest.approx(held["all"] / share, rel=0.02)


def test_all_ranks_stop_at_the_same_step(results):
    for row in ("ddp x2", "fsdp x2"):
        assert len({found["first"]["step"] for found in results(row, "fp32 accumulation 1")}) == 1
