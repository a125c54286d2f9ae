"""A model that draws random numbers in evaluation: who repeats an evaluation draws the same."""

import json
from shlex import split

import pytest

from support.runner import launch, metrics, run_folder

COMMAND = split(
    "model=mlp model._target_=support.drawing.Drawing model.dropout=0.1 model.hidden_dim=16"
    " model.num_features=64 model.num_classes=10 data=custom data.batch_size=60"
    " data.dataset._target_=support.drawing.samples +data.dataset.size=300"
    " trainer.max_steps=4 scheduler=plateau hooks.evaluation.interval=4"
)
SAMPLES = "{_target_: support.drawing.samples}"
COMMAND += [f"data.val_dataset={SAMPLES}", f"data.predict={SAMPLES}"]


@pytest.mark.parametrize("layout", [("strategy=ddp",), ("strategy=fsdp", "dispatch.nproc=2")])
def test_jobs_compute_what_training_has_logged(layout, tmp_path):
    """`test_own_state` shows that a signal in an evaluation changes nothing."""
    for job in ((), ("job=evaluate",)):
        launch(tmp_path, *COMMAND, *layout, *job, code=0)
    (line,) = (run_folder(tmp_path) / "evaluations.jsonl").read_text().splitlines()
    logged = {line["step"]: line["val/loss"] for line in metrics(tmp_path) if "val/loss" in line}
    assert json.loads(line)["val/loss"] == logged[4]
    if "strategy=ddp" in layout:
        files = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
        for ranks, file in enumerate(files, 1):
            job = ("job=predict", f"job.file={file}", f"dispatch.nproc={ranks}")
            launch(tmp_path, *COMMAND, *layout, *job, code=0)
        assert files[0].read_text() == files[1].read_text() != ""
