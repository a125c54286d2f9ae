"""Projects of the shapes on docs/batches.md: they resume bit-exact, and each sample counts once."""

import re

import pytest

from support.paths import ROOT
from support.runner import final_state, launch, metrics

FILE = re.compile(r'```\w+ title="([^"]+)"\n(.*?)```', re.DOTALL)
COMMON = (
    "trainer.max_steps=9",
    "hooks.logging.interval=1",
    "hooks.evaluation.interval=4",
    "hooks.checkpointing.interval=100",
    "device=cpu",
)


@pytest.fixture(autouse=True)
def project(tmp_path_factory, monkeypatch):
    """The files of the page, in the current folder."""
    folder = tmp_path_factory.mktemp("ported")
    for name, text in FILE.findall((ROOT / "docs" / "batches.md").read_text()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)


@pytest.mark.parametrize("experiment", ["graphs", "masks"])
def test_a_ported_project_resumes_bit_exact(experiment, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    case = (*COMMON, f"experiment={experiment}")
    launch(whole, *case, code=0)
    launch(parts, *case, "trainer.pause_at=5", code=0)
    launch(parts, *case, code=0)
    assert metrics(parts) == metrics(whole)
    assert final_state(parts) == final_state(whole)


def test_batches_of_graphs_have_one_accuracy(tmp_path):
    values = []
    for size in (1, 8, 19):
        outputs = tmp_path / str(size)
        sizes = (f"data.val_batch_size={size}", "trainer.max_steps=1")
        launch(outputs, *COMMON, "experiment=graphs", *sizes, code=0)
        values.append(metrics(outputs)[0])
    first, *others = values
    assert first["val/accuracy"] * 19 == pytest.approx(round(first["val/accuracy"] * 19))
    for other in others:
        assert other["val/accuracy"] == pytest.approx(first["val/accuracy"], abs=1e-12)
        assert other["val/loss"] == pytest.approx(first["val/loss"], rel=1e-6)
