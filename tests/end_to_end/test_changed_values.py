"""A changed value under a run's id: it counts from the checkpoint on, or is rejected."""

import re
import shutil
from pathlib import Path
from shlex import split
from typing import Any

import pytest

from launcher.checkpoint.stored import StoredCheckpoint
from support import runner

TRAIN = split(
    "model=mlp data=digits model.hidden_dim=16 data.batch_size=32 optimizer.lr=0.01 device=cpu"
    " trainer.max_steps=20 hooks.logging.interval=1 hooks.evaluation.interval=5"
    " hooks.evaluation.max_samples=64 run.name=changed"
)
PLATEAU = split(
    "scheduler=constant scheduler._target_=torch.optim.lr_scheduler.ReduceLROnPlateau"
    " +scheduler.metric=val/loss +scheduler.patience=0 +scheduler.threshold=0.5"
)
STEP_LR = split(
    "scheduler=constant scheduler._target_=torch.optim.lr_scheduler.StepLR +scheduler.step_size=3"
)
ONE_CYCLE = split(
    "scheduler=constant scheduler._target_=torch.optim.lr_scheduler.OneCycleLR"
    " +scheduler.max_lr=0.01 +scheduler.total_steps=21"
)
RATE = ["optimizer.lr=0.02"]
CHANGES = {
    "rate": ([], RATE),
    "rate, no schedule": (["~scheduler"], RATE),
    "rate, a schedule of torch": (STEP_LR, RATE),
    "rate, a schedule by a metric": (PLATEAU, RATE),
    "rate and schedule": ([], [*RATE, "scheduler=linear"]),
    "betas": ([], ["optimizer.betas=[0.8,0.9]"]),
    "decay, betas cycle": (ONE_CYCLE, ["optimizer.weight_decay=0.5"]),
    "momentum": (["optimizer=sgd"], ["optimizer.momentum=0.5", "optimizer.nesterov=true"]),
    "muon": (["optimizer=muon"], ["optimizer.lr=0.02", "optimizer.ns_steps=3"]),
}


def groups_of(folder: Path) -> list[dict[str, Any]]:
    stored = StoredCheckpoint(folder / "checkpoints" / "latest")
    return [group["settings"] for group in stored.meta["optimizer"]["groups"]]


def train(outputs: Path, *words: str) -> str:
    return runner.launch(outputs, *TRAIN, *words, code=0).output


@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_value_counts_from_the_checkpoint_on(tmp_path, case):
    """It does so too if the run is stopped again, and the groups are those of a run alone."""
    words, changed = CHANGES[case]
    train(tmp_path / "straight", *words, "trainer.pause_at=8")
    named = [*words, f"run.id={runner.run_folder(tmp_path / 'straight').name}", *changed]
    shutil.copytree(tmp_path / "straight", tmp_path / "stopped", symlinks=True)
    output = train(tmp_path / "straight", *named)
    assert f"Changed since the checkpoint: {changed[0].partition('=')[0]}: " in output
    train(tmp_path / "stopped", *named, "trainer.pause_at=13")
    assert "Changed" not in train(tmp_path / "stopped", *named)
    assert runner.metrics(tmp_path / "straight") == runner.metrics(tmp_path / "stopped")
    assert runner.final_state(tmp_path / "straight") == runner.final_state(tmp_path / "stopped")
    if words is PLATEAU:
        # Plateau's rates follow from the losses, which differ in a run trained alone.
        return
    train(tmp_path / "alone", *words, *changed)
    alone, here = (runner.run_folder(tmp_path / name) for name in ("alone", "straight"))
    assert groups_of(here) == groups_of(alone)
    for ours, theirs in zip(runner.metrics_of(here), runner.metrics_of(alone), strict=True):
        rates = {key: value for key, value in theirs.items() if key.startswith("train/lr")}
        assert ours["step"] <= 8 or rates.items() <= ours.items()


REJECTED = {
    "another key of the optimizer": (["optimizer=muon"], "optimizer.adamw_lr=0.001"),
    "the groups": ([], "optimizer.no_decay=[biases]"),
    "the first loss scale": (["precision=fp16"], "precision.init_scale=1024"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_a_value_that_a_resume_cannot_change_is_rejected(tmp_path, case):
    words, changed = REJECTED[case]
    train(tmp_path, *words, "trainer.pause_at=3")
    folder = runner.run_folder(tmp_path)
    before = (folder / "run.json").read_bytes()
    done = runner.launch(tmp_path, *TRAIN, *words, f"run.id={folder.name}", changed, code=2)
    last = done.output.splitlines()[-1]
    assert re.match(rf"{re.escape(changed)}: .*leave it as it was", last), done.output
    assert (folder / "run.json").read_bytes() == before


def test_the_growth_of_the_loss_scale_may_change(tmp_path):
    train(tmp_path, "precision=fp16", "trainer.pause_at=3")
    folder = runner.run_folder(tmp_path)
    train(tmp_path, "precision=fp16", f"run.id={folder.name}", "precision.growth_interval=4")
    state = StoredCheckpoint(folder / "checkpoints" / "latest").meta["training_state"]
    assert state["grad_scaler"]["growth_interval"] == 4


def test_an_adopted_value_counts_from_the_checkpoint_on(tmp_path):
    train(tmp_path, "trainer.pause_at=8")
    folder = runner.run_folder(tmp_path)
    words = ["adopt", folder.name, "--outputs", str(tmp_path), "--", *TRAIN, *RATE]
    process = runner.start("-m", "launcher.runs", *words)
    assert process.wait() == 0, process.stdout.read()
    train(tmp_path, *RATE)
    rates = {line["step"]: line.get("train/lr/decay", 0) for line in runner.metrics(tmp_path)}
    assert rates[8] < 0.01 < rates[9]
    process = runner.start("-m", "launcher.runs", "show", folder.name, "--outputs", str(tmp_path))
    assert "optimizer.lr=0.01 to step 8, then 0.02" in process.communicate()[0]


def test_steps_of_several_configurations_are_not_replayed(tmp_path):
    keeping = "hooks.checkpointing.keep_steps=[4]"
    train(tmp_path, keeping, "trainer.pause_at=8")
    folder = runner.run_folder(tmp_path)
    train(tmp_path, keeping, f"run.id={folder.name}", *RATE)
    shutil.rmtree(folder / "checkpoints" / "step-00000008", ignore_errors=True)
    words = ["-m", "launcher.runs", "replay", folder.name, "--outputs", str(tmp_path)]
    words += ["--from", "4"]
    process = runner.start(*words)
    output = process.communicate()[0]
    assert process.returncode == 2, output
    assert "were trained with several configurations" in output
    assert "optimizer.lr: 0.01 -> 0.02" in output
    process = runner.start(*words[:-2])
    output = process.communicate()[0]
    assert process.returncode == 0 and "steps 0 to 4: bitwise identical" in output, output
