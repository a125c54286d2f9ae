"""Trainer, follower and W&B's own process are killed: each tracker has every step once, with its
value."""

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from launcher.rundir.lock_holder import read_holder
from support import python
from support.mlflow_database import copy_database
from support.processes import running
from support.runner import ENVIRONMENT, record, run_folder
from support.waiting import wait_for
from support.wandb_server import WandbServer

STEPS = 100
COMMAND = (
    "model=mlp",
    "data=digits",
    "device=cpu",
    f"trainer.max_steps={STEPS}",
    "hooks.logging.interval=1",
    "hooks.evaluation.interval=50",
    "hooks.checkpointing.interval=20",
    "tracker=[wandb,tensorboard,mlflow]",
    "+tracker.wandb.settings.x_disable_stats=true",
    "+tracker.pace._target_=support.pacer.Pacer",
    "+tracker.pace.seconds=0.05",
)


class Chaos:
    """The command, started as often as it takes."""

    def __init__(self, outputs: Path):
        self.outputs = outputs
        self.process: Any = None

    def start(self) -> None:
        command = ["-m", "launcher", *COMMAND, f"paths.outputs={self.outputs}"]
        with open(self.outputs / "screen.log", "ab") as log:
            self.process = python.start(*command, env={**ENVIRONMENT, **os.environ}, stdout=log)

    def lines(self) -> list[dict]:
        path = run_folder(self.outputs) / "metrics.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def train_for(self, count: int) -> None:
        """Until that many more lines are written."""
        wait_for(lambda: any(self.outputs.glob("*/*/metrics.jsonl")))
        until = len(self.lines()) + count
        wait_for(lambda: len(self.lines()) >= until or self.process.poll() is not None)

    def kill_follower(self) -> None:
        """And with it W&B's process, as the end of a SLURM job does."""
        log = (run_folder(self.outputs) / "logs" / "tracker.log").read_text()
        pid = int(re.findall(r"Follower (\d+)", log)[-1])
        children = [each for each, stat in running() if stat[1] == str(pid)]
        for each in (*children, pid):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


def is_followed(folder: Path) -> bool:
    holder = read_holder(folder / "tracker.lock")
    return holder is not None and holder.is_alive()


@pytest.fixture
def server(monkeypatch):
    with WandbServer() as server:
        monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        yield server


def test_every_step_once_in_every_tracker(tmp_path, server):
    # Here: each worker collects all tests, and it takes two CPU-seconds.
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    copy_database(tmp_path / "mlflow.db")
    chaos = Chaos(tmp_path)
    chaos.start()
    chaos.train_for(45)
    chaos.process.kill()  # its follower lives on, until it sees the next attempt
    chaos.process.wait()
    chaos.start()
    chaos.train_for(20)
    chaos.kill_follower()
    assert chaos.process.wait() == 0, (tmp_path / "screen.log").read_text()
    wait_for(lambda: not is_followed(run_folder(tmp_path)))
    # Wandb keeps its first environment.
    python.run("-m", "launcher.runs", "sync", "--outputs", str(tmp_path), check=True)

    outcomes = [attempt["outcome"] for attempt in record(tmp_path)["attempts"]]
    assert outcomes == ["killed", "completed"]
    lines = chaos.lines()
    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    (arrived,) = server.runs.values()
    for metric in ("train/loss", "val/loss"):
        expected = [(line["step"], line[metric]) for line in lines if metric in line]
        history = [line for line in arrived["history"] if metric in line]
        assert [(line["_step"], line[metric]) for line in history] == expected
        folder = str(run_folder(tmp_path) / "tensorboard")
        events = EventAccumulator(folder, size_guidance={"scalars": 0}).Reload()
        approximate = [(step, pytest.approx(value)) for step, value in expected]
        assert [(each.step, each.value) for each in events.Scalars(metric)] == approximate
        client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
        (run,) = client.search_runs([client.get_experiment_by_name("launcher").experiment_id])
        history = client.get_metric_history(run.info.run_id, metric)
        assert sorted((each.step, each.value) for each in history) == expected
    assert arrived["exit"] == 0
    assert run.info.status == "FINISHED"
