"""Norms by block."""

from pathlib import Path

import pytest

from launcher import FunctionHook
from launcher.hooks.gradients import GradientsHook, block_of
from support.toy import Recorder, Toy


def test_the_norms_are_parts_of_the_whole_norm(tmp_path: Path) -> None:
    logged, norms = Recorder(), {}
    note = FunctionHook(
        on_after_step=lambda trainer: norms.update(
            {trainer.step: float(trainer.step_info["grad_norm"])}
        )
    )
    Toy([GradientsHook(2), logged, note], 5, tmp_path).train()
    assert [step for step, _ in logged.records] == [2, 4, 5]
    for step, records in logged.records:
        assert set(records["gradients"]) == {"0", "2"}
        assert sum(
            float(norm) ** 2 for norm in records["gradients"].values()
        ) ** 0.5 == pytest.approx(norms[step])


@pytest.mark.parametrize(
    ("name", "depth", "expected"),
    [
        ("blocks.3.attention.q.weight", None, "blocks.3"),
        ("model.layers.11.mlp.up.weight", None, "model.layers.11"),
        ("embedding.weight", None, "embedding"),
        ("scale", None, "scale"),
        ("blocks.3.attention.q.weight", 3, "blocks.3.attention"),
        ("norm.weight", 5, "norm"),
    ],
)
def test_blocks(name: str, depth: int | None, expected: str) -> None:
    assert block_of(name, depth) == expected
