"""runs evaluate RUN --follow: every checkpoint of a run is evaluated, by another process."""

import json
from shlex import split

from support import python
from support.runner import ENVIRONMENT, metrics, run_folder, start
from support.waiting import wait_for

AUC = (
    "+hooks.evaluation.metrics.auc._target_=torchmetrics.AUROC",
    "+hooks.evaluation.metrics.auc.task=multiclass",
    "+hooks.evaluation.metrics.auc.num_classes=10",
)


def test_every_checkpoint_of_a_run_is_evaluated_once_while_it_trains(tmp_path):
    words = split(
        "model=mlp data=digits model.dropout=0.1 trainer.max_steps=60 hooks.logging.interval=7"
        " hooks.evaluation.interval=10 hooks.checkpointing.keep_interval=10"
        " +tracker.pacer={_target_:support.pacer.Pacer,seconds:0.1}"
    )
    training = start("-m", "launcher", f"paths.outputs={tmp_path}", *words)
    wait_for(lambda: [*tmp_path.glob("*/*/checkpoints/step-00000010/manifest.json")])
    folder = run_folder(tmp_path)
    follow = (folder.name, "--outputs", str(tmp_path), "--follow", *AUC)
    first = python.run("-m", "launcher.runs", "evaluate", *follow, env=ENVIRONMENT, check=True)
    assert training.wait() == 0 and "step-00000010" in first.stdout
    rows = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    logged = {row["step"]: row.get("val/loss") for row in metrics(tmp_path)}
    expected = [(step, logged[step]) for step in range(10, 61, 10)]
    assert [(row["step"], row["val/loss"]) for row in rows] == expected
    assert all(0 < row["val/auc"] <= 1 for row in rows)
    again = python.run("-m", "launcher.runs", "evaluate", *follow, env=ENVIRONMENT, check=True)
    assert again.stdout == ""
