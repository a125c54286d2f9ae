"""`runs fork`: a new run from a checkpoint of another."""

import json
from pathlib import Path
from shlex import split
from typing import Any

import pytest

from launcher.runs.__main__ import main
from launcher.runs.find_runs import find_run
from support import python, runner
from support.runner import metrics_of, state_of

SHORT = split(
    "model=mlp data=digits trainer.max_steps=12 model.hidden_dim=16 model.dropout=0.1"
    " data.batch_size=32 optimizer.lr=0.01 hooks.logging.interval=1 hooks.evaluation.interval=6"
    " hooks.checkpointing.interval=6 hooks.checkpointing.keep_previous=9"
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fork") / "outputs"
    runner.launch(folder, *SHORT, "run.id=source", code=0)
    return folder


@pytest.fixture
def source(outputs):
    """The folder of a run of 12 steps, with checkpoints of 6 and 12."""
    return outputs / "mlp-digits" / "source"


def fork(outputs: Path, name: str, *overrides: str, at: int = 6) -> Path:
    """The folder of the new run."""
    words = (*SHORT, f"run.fork_from=source/{at}", f"run.id={name}", *overrides)
    done = runner.launch(outputs, *words)
    assert done.returncode == 0 and "Forked from" in done.output, done.output
    return outputs / "mlp-digits" / name


def losses(folder: Path) -> dict[int, float]:
    return {line["step"]: line["train/loss"] for line in metrics_of(folder) if "train/loss" in line}


def test_a_fork_without_changes_continues_as_its_source(outputs, source, capsys):
    words = ("fork", "source", "--at", "6", "run.id=copy", "--outputs", str(outputs))
    python.run("-m", "launcher.runs", *words, env=runner.ENVIRONMENT, check=True)
    copy = source.with_name("copy")
    assert metrics_of(copy) == [line for line in metrics_of(source) if line["step"] >= 6]
    assert state_of(copy) == state_of(source)
    record = json.loads((copy / "run.json").read_text())
    assert record["forked_from"] == {"id": "source", "name": "mlp-digits", "step": 6}
    assert record["attempts"][0]["start_step"] == 6 and record["state"] == "completed"
    assert main(["show", copy.name, "--outputs", str(outputs)]) == 0
    assert "forked from  mlp-digits/source at step 6" in capsys.readouterr().out


def test_a_fork_with_another_rate_has_that_rate_at_once(outputs, source):
    changed = fork(outputs, "changed", "optimizer.lr=0.02")
    before, now = losses(source), losses(changed)
    assert now[7] == before[7]  # the weights of step 6, and the next batch
    assert now[8] != before[8]
    assert rates(changed) == {step: 2 * rate for step, rate in rates(source).items()}


def rates(folder: Path) -> dict[int, float]:
    """Return the rates after step 6."""
    lines = [line for line in metrics_of(folder) if line["step"] > 6]
    return {line["step"]: line["train/lr/decay"] for line in lines}


def test_an_extension_and_a_fork_have_the_rates_of_a_run_of_their_length(tmp_path):
    schedule = "{_target_:torch.optim.lr_scheduler.OneCycleLR,max_lr:0.1,"
    schedule += "total_steps:${trainer.max_steps}}"
    outputs = tmp_path / "outputs"
    words = [*SHORT, "~scheduler", f"+scheduler={schedule}", "trainer.max_steps=6"]

    def run(name: str, *overrides: str) -> dict[int, Any]:
        runner.launch(outputs, *words, f"run.id={name}", *overrides, code=0)
        return rates(outputs / "mlp-digits" / name)

    run("source")
    straight = run("straight", "trainer.max_steps=12")
    assert run("forked", "trainer.max_steps=12", "run.fork_from=source/6") == straight
    assert run("source", "trainer.max_steps=12") == straight


def test_a_fork_takes_what_it_is_asked_to(outputs, source):
    before = losses(source)
    fresh = fork(outputs, "fresh", "optimizer=sgd", "run.fork_without=[optimizer]")
    assert losses(fresh)[7] == before[7] and losses(fresh)[8] != before[8]
    other_data = fork(outputs, "other", "run.fork_without=[data]")
    assert losses(other_data)[7] != before[7]
    assert [line["samples"] for line in metrics_of(other_data) if line["step"] == 7] == [32]


def test_a_fork_that_was_stopped_resumes_itself(outputs, source):
    words = ["run.fork_from=source/6", "run.id=stopped", *SHORT]
    runner.launch(outputs, *words, *runner.stop_at(9), code=143)
    done = runner.launch(outputs, *words)
    assert done.returncode == 0 and "Resuming from" in done.output, done.output
    assert state_of(source.with_name("stopped")) == state_of(source)
    words = ("replay", "stopped", "--segments=1", f"--outputs={outputs}")
    replay = runner.start("-m", "launcher.runs", *words)
    output, _ = replay.communicate()
    assert replay.returncode == 0, output


def test_bad_forks_are_rejected(outputs, tmp_path):
    for words, sentence in (
        (["run.fork_from=source/7"], "run.fork_from='source/7': there is no such checkpoint"),
        (["run.fork_without=[data]"], "run.fork_without=['data']: "),
        (["run.fork_from=source/6", "optimizer=sgd"], "its optimizer is adamw, and this run's sgd"),
    ):
        done = runner.launch(outputs, *SHORT, *words)
        assert done.returncode == 2 and sentence in done.output, done.output


def test_a_run_that_stopped_early_is_forked_and_extended(tmp_path):
    """Neither its reason to stop nor its patience counts for another run, or for another
    configuration."""
    stopping = ["hooks=[default,early_stopping]"]
    stopping += ["hooks.early_stopping.patience=1", "hooks.early_stopping.min_delta=9"]
    command = [*SHORT, *stopping, "hooks.evaluation.interval=3", "run.id=source"]
    runner.launch(tmp_path, *command, code=0)
    source = find_run("source", tmp_path)
    assert source.record["step"] == 3 and source.record["state"] == "completed"
    again = runner.launch(tmp_path, *command)
    assert "complete already (step 3)" in again.output, again.output

    done = runner.launch(tmp_path, *command, "run.fork_from=source/3", "run.id=forked")
    forked = find_run("forked", tmp_path)
    # 6 is its best, 9 the first without a gain.
    assert done.returncode == 0 and forked.record["step"] == 9, done.output
    assert (forked.folder.checkpoints / "latest").exists()

    runner.launch(tmp_path, *command, "hooks.early_stopping.patience=2", code=0)
    assert find_run("source", tmp_path).record["step"] == 6
    without = [word for word in command if word not in stopping]
    runner.launch(tmp_path, *without, "trainer.max_steps=15", code=0)
    assert find_run("source", tmp_path).record["step"] == 15
    assert [attempt["start_step"] for attempt in find_run("source", tmp_path).attempts] == [0, 3, 6]


def test_a_fork_with_nothing_left_to_train_has_a_checkpoint(outputs):
    copy = fork(outputs, "nothing", at=12)
    assert (copy / "checkpoints" / "latest").resolve().name == "step-00000012"
    assert json.loads((copy / "run.json").read_text())["checkpoint"] == 12
