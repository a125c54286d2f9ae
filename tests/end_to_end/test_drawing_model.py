"""A model that draws random numbers in evaluation: who repeats an evaluation draws the same."""

import json
from pathlib import Path
from shlex import split
from typing import Any

import pytest

from support.runner import final_state, launch, metrics, record, run_folder, stop_at

COMMAND = split(
    "model=mlp data=digits model._target_=support.drawing.Drawing model.dropout=0.1"
    " model.hidden_dim=16 data.batch_size=60 trainer.max_steps=12 scheduler=plateau"
    " scheduler.patience=0 hooks.logging.interval=1 hooks.evaluation.interval=4"
    " hooks.evaluation.max_samples=200 hooks.checkpointing.interval=4"
    " hooks.checkpointing.keep_previous=9"
)


def validation(outputs: Path) -> dict[int, Any]:
    return {line["step"]: line["val/loss"] for line in metrics(outputs) if "val/loss" in line}


def tensors(outputs: Path) -> dict[str, Any]:
    """The digests of the tensors. The schedule of the last step is decided after its save."""
    state = final_state(outputs)
    return {name: state[name] for name in state if name.startswith("shard")}


@pytest.fixture(scope="module", params=["none", "fsdp"])
def layout(request):
    ranks = () if request.param == "none" else ("dispatch.nproc=2",)
    return (f"strategy={request.param}", *ranks)


@pytest.fixture(scope="module")
def straight(layout, tmp_path_factory):
    outputs = tmp_path_factory.mktemp("straight")
    done = launch(outputs, *COMMAND, *layout)
    assert done.returncode == 0, done.output
    return outputs


def test_a_signal_in_an_evaluation_changes_nothing(layout, straight, tmp_path):
    stopped = launch(tmp_path, *COMMAND, *layout, *stop_at(8, "evaluation"))
    assert stopped.returncode == 143, stopped.output
    assert 8 not in validation(tmp_path)
    assert launch(tmp_path, *COMMAND, *layout).returncode == 0
    assert metrics(tmp_path) == metrics(straight)
    assert tensors(tmp_path) == tensors(straight)
    assert record(tmp_path)["best"] == record(straight)["best"]


def test_jobs_compute_what_training_has_logged(layout, straight):
    job = ("job=evaluate", "job.checkpoint=8")
    assert launch(straight, *COMMAND, *layout, *job).returncode == 0
    evaluations = (run_folder(straight) / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(evaluations[-1])["val/loss"] == validation(straight)[8]


def test_predictions_are_the_same_on_any_number_of_ranks(tmp_path):
    samples = "{_target_: support.drawing.samples}"
    data = ("data=custom", f"data.dataset={samples}", f"data.predict={samples}")
    sizes = (
        "model.num_features=64",
        "model.num_classes=10",
        "trainer.max_steps=2",
        "data.batch_size=32",
    )
    command = (*COMMAND[:1], *COMMAND[2:5], *data, *sizes, "strategy=ddp", "scheduler=constant")
    assert launch(tmp_path, *command).returncode == 0
    files = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for ranks, file in enumerate(files, 1):
        job = ("job=predict", f"job.file={file}", f"dispatch.nproc={ranks}")
        done = launch(tmp_path, *command, *job)
        assert done.returncode == 0, done.output
    assert files[0].read_text() == files[1].read_text()
