"""Projects of others as they are: they resume bit-exact, and each sample counts once."""

import pytest

from support.runner import final_state, launch, metrics

COMMON = (
    "data=custom",
    "~model",
    "data.batch_size=8",
    "trainer.max_steps=9",
    "hooks.logging.interval=1",
    "hooks.evaluation.interval=4",
    "hooks.checkpointing.interval=100",
    "device=cpu",
)
PROJECTS = {
    "graphs": (
        "+model={_target_: support.ported.GraphNet}",
        "data.dataset={_target_: support.ported.Graphs}",
        "data.val_dataset={_target_: support.ported.Graphs}",
        "+data.val_dataset.seed=1",
        "data.collate_fn={_target_: support.ported.collate, _partial_: true}",
        "data.num_workers=1",
    ),
    "a pool in the constructor": (
        "+model={_target_: support.ported.SmallNet}",
        "data.dataset={_target_: support.ported.Masks}",
        "data.val_dataset={_target_: support.ported.Masks}",
        "+data.val_dataset.seed=1",
    ),
}


@pytest.mark.parametrize("project", PROJECTS)
def test_a_ported_project_resumes_bit_exact(project, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    case = (*COMMON, *PROJECTS[project])
    launch(whole, *case, code=0)
    launch(parts, *case, "trainer.pause_at=5", code=0)
    launch(parts, *case, code=0)
    assert metrics(parts) == metrics(whole)
    assert final_state(parts) == final_state(whole)


def test_batches_of_graphs_have_one_accuracy(tmp_path):
    values = []
    for size in (1, 8, 19):
        outputs = tmp_path / str(size)
        launch(
            outputs, *COMMON, *PROJECTS["graphs"], f"data.val_batch_size={size}",
            "trainer.max_steps=1", code=0,
        )  # fmt: skip
        values.append(metrics(outputs)[0])
    first, *others = values
    assert first["val/accuracy"] * 19 == pytest.approx(round(first["val/accuracy"] * 19))
    for other in others:
        assert other["val/accuracy"] == pytest.approx(first["val/accuracy"], abs=1e-12)
        assert other["val/loss"] == pytest.approx(first["val/loss"], rel=1e-6)
