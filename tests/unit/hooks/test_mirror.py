"""Trackers of a trainer without a configuration."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from launcher import (
    BaseHook,
    CheckpointingHook,
    ConfigError,
    FunctionHook,
    JsonlHook,
    LoggingHook,
    TensorBoardHook,
    WandbHook,
)
from launcher.config.construct import instantiate
from launcher.process import signals
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock import RunLock
from launcher.runs.__main__ import main
from launcher.trackers.base import TrackedRun
from support.toy import Toy


def test_message_about_a_held_workspace_names_no_key_of_a_configuration(tmp_path):
    with RunLock(RunFolder(tmp_path)), pytest.raises(ConfigError) as error:
        Toy([TensorBoardHook(), LoggingHook(1)], 2, tmp_path).train()
    assert str(error.value).startswith(f"workspace='{tmp_path}': process ")
    assert str(error.value).endswith("wait for it or stop it, or use another workspace.")


def stop(trainer: Any) -> None:
    if trainer.step == 3:
        signals.note(signal.SIGTERM)


def losses(folder: Path) -> list[tuple[int, float]]:
    # The import takes a second, which each collection of the tests would pay.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("train/loss")]


@pytest.mark.slow
def test_each_step_is_in_the_event_file_once_over_a_resume(tmp_path, monkeypatch):
    work = tmp_path / "work"

    def train(*more: BaseHook) -> None:
        hooks = [TensorBoardHook(config={"lr": 0.1}), CheckpointingHook(2), LoggingHook(1), *more]
        Toy(hooks, 6, work).train()

    with pytest.raises(signals.SignalExit):
        train(FunctionHook(on_after_step=stop))
    record = json.loads((work / "run.json").read_text())
    assert (record["state"], record["step"], record["config"]["lr"]) == ("preempted", 3, 0.1)
    # The resumed run may add to the newest line.
    assert [step for step, _ in losses(work)] == [1, 2]
    train()
    record = json.loads((work / "run.json").read_text())
    assert (record["state"], len(record["attempts"])) == ("completed", 2)
    assert record["name"] == tmp_path.name and record["loss"] is not None
    lines = [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]
    assert losses(work) == [
        (line["step"], pytest.approx(line["train/loss"], rel=1e-6)) for line in lines
    ]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert not (work / "run.lock").exists()
    for path in (work / "tensorboard").rglob("*"):
        path.unlink()
    assert main(["sync", str(work)]) == 0
    assert len(losses(work)) == 6
    monkeypatch.chdir(tmp_path)
    assert TrackedRun(RunFolder("work")).label == f"{tmp_path.name}/work"


def test_what_cannot_work_is_one_sentence(tmp_path):
    twice = [TensorBoardHook(), TensorBoardHook(), JsonlHook()]
    with pytest.raises(ConfigError, match="two hooks for one tracker"):
        Toy(twice, 1, tmp_path).train()
    with pytest.raises(TypeError, match="colour"):
        TensorBoardHook(colour="red")


def test_wandb_gets_its_options(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"lr": 1}')
    hook = WandbHook("p", tmp_path / "config.json", ["a"], name="n", mode="offline")
    tracker = instantiate(hook.node())
    assert (tracker.project, tracker.tags, tracker.name) == ("p", ["a"], "n")
    assert tracker.waits_for_sync and hook.config == {"lr": 1}
    monkeypatch.setenv("WANDB_PROJECT", "other")
    assert WandbHook("p").options["project"] == "other"
