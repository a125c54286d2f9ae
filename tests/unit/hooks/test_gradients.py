"""Norms by block."""

import pytest

from launcher import FunctionHook
from launcher.hooks.gradients import GradientsHook, block_of
from support.toy import Recorder, Toy


def test_the_norms_are_parts_of_the_whole_norm(tmp_path):
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
    ("name", "expected"),
    [
        ("blocks.3.attention.q.weight", "blocks.3"),
        ("model.layers.11.mlp.up.weight", "model.layers.11"),
        ("embedding.weight", "embedding"),
        ("scale", "scale"),
    ],
)
def test_blocks(name, expected):
    assert block_of(name) == expected
