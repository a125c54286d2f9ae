"""Additions of a command to a completed run."""

from typing import Any

from launcher.config.identity.record_entry import command_record
from launcher.config.run_config import RunConfig
from launcher.run_advice import additions
from launcher.rundir.run_on_disk import RunOnDisk

F1 = {"_target_": "torchmetrics.F1Score", "task": "binary"}
TENSORBOARD = {
    "tensorboard": {"_target_": "launcher.trackers.tensorboard.TensorBoardTracker", "path": "t"}
}
MLFLOW = {"mlflow": {"_target_": "launcher.trackers.mlflow.MlflowTracker"}}
OWN_HOOK = {"mine": {"_target_": "support.toy.Recorder"}}


def config_of(metrics: dict[str, Any], tracker: dict[str, Any]) -> dict[str, Any]:
    hooks = {"evaluation": {"interval": 10, "metrics": metrics}}
    return {"hooks": hooks, "tracker": tracker, "paths": {"outputs": "my runs"}}


COMPUTES = "job=evaluate, added to this command, computes it for the last checkpoint."
METRICS = "hooks.evaluation.metrics"
SYNC = (
    "To copy the run to it: python -m launcher.runs sync run 'tracker=[mlflow]' --outputs 'my runs'"
)


def test_a_completed_run_says_how_to_get_what_is_added(tmp_path):
    config = command_record(config_of({"acc": F1}, TENSORBOARD), None)["config"]
    run = RunOnDisk(str(tmp_path / "run"), {"config": config})
    own, computes = "+tracker.mlflow={}", f"{METRICS}.f1: {COMPUTES}"
    for metrics, tracker, words, expected in (
        ({"acc": F1}, TENSORBOARD | OWN_HOOK | {"none": None}, [], []),
        ({"acc": F1, "f1": F1}, TENSORBOARD | MLFLOW, [], [computes, SYNC]),
        ({"acc": F1}, MLFLOW, [own], [SYNC.replace("tracker=[mlflow]", own)]),
    ):
        config = config_of(metrics, tracker)
        made = RunConfig(config, config, {"overrides": {"task": words}})
        assert list(additions(made, run)) == expected
