"""A model that draws random numbers in evaluation: who repeats an evaluation draws the same."""

import json
from pathlib import Path
from shlex import split
from typing import Any

import pytest

from support.runner import final_state, launch, metrics, record, run_folder, stop_at

COMMAND = split(
    "model=mlp model._target_=support.drawing.Drawing model.dropout=0.1 model.hidden_dim=16"
    " model.num_features=64 model.num_classes=10 strategy=ddp data=custom data.batch_size=60"
    " data.dataset._target_=support.drawing.samples +data.dataset.size=300"
    " trainer.max_steps=12 scheduler=plateau"
    " scheduler.patience=0 hooks.logging.interval=1 hooks.evaluation.interval=4"
    " hooks.checkpointing.interval=4 hooks.checkpointing.keep_previous=9"
)
SAMPLES = "{_target_: support.drawing.samples}"
COMMAND += [f"data.val_dataset={SAMPLES}", f"data.predict={SAMPLES}"]


def validation(outputs: Path) -> dict[int, Any]:
    return {line["step"]: line["val/loss"] for line in metrics(outputs) if "val/loss" in line}


def tensors(outputs: Path) -> dict[str, Any]:
    """The digests of the tensors. The schedule of the last step is decided after its save."""
    state = final_state(outputs)
    return {name: state[name] for name in state if name.startswith("shard")}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    outputs = tmp_path_factory.mktemp("straight")
    launch(outputs, *COMMAND, code=0)
    return outputs


def test_a_signal_in_an_evaluation_changes_nothing(straight, tmp_path):
    """`test_own_state` shows the same of two ranks."""
    launch(tmp_path, *COMMAND, *stop_at(8, "evaluation"), code=143)
    assert 8 not in validation(tmp_path)
    launch(tmp_path, *COMMAND, code=0)
    assert metrics(tmp_path) == metrics(straight)
    assert tensors(tmp_path) == tensors(straight)
    assert record(tmp_path)["best"] == record(straight)["best"]


@pytest.mark.parametrize("layout", [(), ("strategy=fsdp", "dispatch.nproc=2")])
def test_jobs_compute_what_training_has_logged(layout, tmp_path):
    for job in ((), ("job=evaluate",)):
        launch(tmp_path, *COMMAND, "trainer.max_steps=4", *layout, *job, code=0)
    (line,) = (run_folder(tmp_path) / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(line)["val/loss"] == validation(tmp_path)[4]


def test_predictions_are_the_same_on_any_number_of_ranks(straight, tmp_path):
    files = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for ranks, file in enumerate(files, 1):
        job = ("job=predict", f"job.file={file}", f"dispatch.nproc={ranks}")
        launch(straight, *COMMAND, *job, code=0)
    assert files[0].read_text() == files[1].read_text() != ""
