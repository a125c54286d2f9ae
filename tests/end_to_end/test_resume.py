"""A run that is stopped and resumed ends as one that was never stopped, bit-exact, and has done the
same."""

import os
import re
import shutil
import signal
from pathlib import Path
from shlex import split

import pytest
import torch
from safetensors.torch import save_file

from launcher.rundir.history import is_measured
from support import python
from support.runner import (
    ENVIRONMENT,
    final_state,
    launch,
    metrics,
    record,
    run_folder,
    steps,
    stop_at,
)

TINY_GPT = split(
    "model=gpt model.dim=16 model.num_layers=1 model.num_heads=2 model.dropout=0.1 data.seq_len=16"
)
DIGITS = ("model=mlp", "data=digits", "model.hidden_dim=16", "model.dropout=0.1")
COMMON = split(
    "data.batch_size=60 trainer.max_steps=60 hooks.logging.interval=7 hooks.progress.interval=5"
    " hooks.evaluation.interval=10 hooks.evaluation.max_samples=128 hooks.checkpointing.interval=15"
)
NOTHING = ("hooks=[checkpointing]", "hooks.checkpointing.best_metric=null")
WORKERS = (*TINY_GPT, "data.num_workers=2", "trainer.micro_batch_size=20", "trainer.max_steps=12")
SCALER = (*DIGITS, "data.num_workers=0", "trainer.micro_batch_size=30", "precision=fp16")


DONE = re.compile(r" INFO +(Step +\d+(?=/)|Step \d+: (?!checkpoint ).*)")
"""A line of the log about progress, without the speed, or about an evaluation."""
SAVED = re.compile(r" INFO +Step (\d+): checkpoint ")


def work(outputs: Path) -> tuple[list[str], list[int], set[str]]:
    """Return what all attempts of the only run have reported, which steps they have saved, and the
    names of its files."""
    folder = run_folder(outputs)
    log = (folder / "logs" / "launcher.log").read_text()
    names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return DONE.findall(log), sorted(map(int, SAVED.findall(log))), names


def assert_same_work(parts: Path, whole: Path, stops: list[int]) -> None:
    """Assert that nothing was repeated or left out; `stops` are the saves that only stops made."""
    (done, saved, names), (expected, expected_saves, expected_names) = work(parts), work(whole)
    assert expected and expected_saves
    assert done == expected
    assert saved == sorted([*expected_saves, *stops])
    assert names == expected_names


# Some 1,400 training digits: steps of 60 samples cross the ends of epochs at 24 and 48.
@pytest.mark.parametrize(
    ("overrides", "stops"),
    [
        (WORKERS, [(4, "backward"), (10, "evaluation")]),
        (SCALER, [(23, "after_step"), (47, "before_step")]),
    ],
    ids=["gpt-workers-accumulation", "digits-accumulation-fp16-scaler"],
)
def test_interruptions_leave_no_trace(tmp_path, overrides, stops):
    launch(tmp_path / "whole", *COMMON, *overrides, code=0)
    parts = tmp_path / "parts"
    for step, moment in stops:
        launch(parts, *COMMON, *overrides, *stop_at(step, moment), code=143)
        now, attempt = record(parts), record(parts)["attempts"][-1]
        assert (now["state"], attempt["outcome"], attempt["signal"]) == ENDED
        assert attempt["end_step"] == now["step"] == step
    launch(parts, *COMMON, *overrides, code=0)
    assert record(parts)["state"] == "completed" and len(record(parts)["attempts"]) == 3
    ends = [(a["start_step"], a["end_step"]) for a in record(parts)["attempts"]]
    assert [start for start, _ in ends[1:]] == [end for _, end in ends[:-1]], "a step was lost"
    assert final_state(parts) == final_state(tmp_path / "whole")
    assert metrics(parts) == metrics(tmp_path / "whole")
    # The evaluation that a signal ended is repeated, and its step is saved after it.
    assert_same_work(parts, tmp_path / "whole", [step for step, _ in stops])


ENDED = "preempted", "preempted", "SIGTERM"


@pytest.mark.parametrize(
    ("step", "moment", "code"),
    [(0, "before_train", 143), (6, "after_step", 0), (6, "after_train", 0)],
)
def test_a_signal_at_any_moment_is_honoured(tmp_path, step, moment, code):
    command = (*COMMON, *DIGITS, "trainer.max_steps=6", "hooks.evaluation.interval=3")
    launch(tmp_path, *command, *stop_at(step, moment, group=False), code=code)
    now = record(tmp_path)
    assert now["state"] == ("completed" if code == 0 else "preempted")
    assert now["step"] == step
    if step == 0:
        launch(tmp_path, *command, code=0)
        assert record(tmp_path)["state"] == "completed"
        assert len(record(tmp_path)["attempts"]) == 2


AT_IMPORT = """
import importlib.abc, os, signal, sys


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            os.kill(os.getpid(), signal.SIGTERM)


sys.meta_path.insert(0, Finder())
"""


def test_a_signal_while_torch_is_imported(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT)
    path = f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", path)
    stopped = launch(tmp_path / "outputs", *COMMON, *DIGITS, real=True, code=143)
    assert "Traceback" not in stopped.output
    now = record(tmp_path / "outputs")
    assert (now["state"], now["step"]) == ("preempted", 0)


def test_a_signal_from_outside(tmp_path):
    command = (*DIGITS, "trainer.max_steps=100000", "hooks.progress.interval=5")
    stopped = launch(tmp_path, *command, at="Step     20/", signum=signal.SIGINT, code=130)
    assert "Traceback" not in stopped.output
    again = launch(
        tmp_path,
        *command,
        at="Training from step",
        signum=signal.SIGUSR1,
        code=128 + signal.SIGUSR1,
    )
    assert "Resuming from" in again.output


def test_a_stalled_data_source_cannot_hold_a_signal(tmp_path):
    wait = tmp_path / "wait"
    command = split(
        "data=custom data.dataset._target_=support.interrupter.Stalling +data.dataset.at=200"
        f" +data.dataset.while_exists={wait} data.batch_size=32 model=mlp model.num_features=64"
        " model.num_classes=10 trainer.max_steps=30 hooks.progress.interval=1"
    )
    launch(tmp_path / "whole", *command, "data.num_workers=0", code=0)
    for count in (0, 2):
        parts, workers = tmp_path / f"parts-{count}", f"data.num_workers={count}"
        wait.touch()
        launch(parts, *command, workers, at="Stalled", code=143)
        wait.unlink()
        launch(parts, *command, workers, code=0)
        assert record(parts)["attempts"][1]["start_step"] > 0
        assert final_state(parts) == final_state(tmp_path / "whole")


def test_changed_data_are_rejected_whether_or_not_a_run_is_complete(tmp_path):
    table = tmp_path / "a.csv"
    rows = [f"{number},{number % 7},{number % 3}" for number in range(60)]
    table.write_text(text := "\n".join(["a,b,y", *rows]) + "\n")
    columns = ("data.target=y", "data.features=[a,b]", "data.num_classes=3", *NOTHING)
    command = ("model=mlp", "data=table", f"data.files={table}", *columns, "trainer.max_steps=6")
    outputs, pause = tmp_path / "outputs", ["trainer.pause_at=4"]
    for words, rejected in ((pause, [pause, []]), ([], [[]])):
        table.write_text(text)
        for said in ("checkpoint saved", "already"):
            os.utime(table)  # it is read again, and is the same
            done = launch(outputs, *command, *words)
            assert done.returncode == 0 and said in done.output, done.output
        table.write_text(text.replace("0,0,0", "8,8,0"))
        before = (run_folder(outputs) / "run.json").read_bytes()
        for words in rejected:
            done = launch(outputs, *command, *words, code=2)
            assert done.output.splitlines()[-1].startswith("data: the training data were '")
        assert (run_folder(outputs) / "run.json").read_bytes() == before


def test_a_completed_run(tmp_path):
    """It is left alone; what has changed since is reported; asked for more steps it trains."""
    command = (*DIGITS, "trainer.max_steps=3", "hooks.evaluation.interval=0")
    launch(tmp_path, *command, code=0)
    folder = run_folder(tmp_path)
    before = (folder / "run.json").read_bytes()
    named = (*command, f"run.id={folder.name}")
    again = launch(tmp_path, *named, "optimizer.lr=0.02", "hooks.logging.interval=2", code=0)
    assert "complete already" in again.output and "run.tag=" in again.output
    assert "Changed since it was trained: optimizer.lr: 0.003 -> 0.02" in again.output
    assert "hooks.logging.interval" not in again.output, "that cannot change the numbers"
    assert (folder / "run.json").read_bytes() == before
    more = launch(tmp_path, *named, "trainer.max_steps=5", "data.batch_size=32")
    assert more.returncode == 0 and "Resuming from" in more.output, more.output
    assert "Changed since the checkpoint: trainer.max_steps: 3 -> 5" in more.output
    ends = [(each["start_step"], each["end_step"]) for each in record(tmp_path)["attempts"]]
    assert ends == [(0, 3), (3, 5)]


def test_a_completed_run_of_epochs_has_not_changed(tmp_path):
    """Its command has no number of steps, and its checkpoint has one."""
    command = (*DIGITS, "hooks=[checkpointing]", "trainer.max_steps=null", "run.id=a")
    for epochs, is_changed in ((1, False), (0.5, True)):
        for _ in range(2 if epochs == 1 else 1):
            done = launch(tmp_path, *command, f"trainer.max_epochs={epochs}", code=0)
        assert "complete already" in done.output
        assert ("Changed since" in done.output) is is_changed
        assert "max_steps" not in done.output


def test_an_earlier_command_does_not_end_an_extension(tmp_path):
    """It was killed, so run.json does not have its last step."""
    saved = "hooks.checkpointing={asynchronous:false,interval:2,keep_previous:9}"
    command = (*DIGITS, "run.id=a", "hooks.evaluation.interval=0", saved)
    launch(tmp_path, *command, "trainer.max_steps=3", code=0)
    launch(tmp_path, *command, "trainer.max_steps=90", *stop_at(7, signum="SIGKILL"), code=-9)
    before = (run_folder(tmp_path) / "run.json").read_bytes()
    earlier = launch(tmp_path, *command, "trainer.max_steps=3", code=0)
    assert "is at step 6, past trainer.max_steps=3: nothing to do" in earlier.output
    assert (run_folder(tmp_path) / "run.json").read_bytes() == before
    words = ("rollback", "a", "2", "--outputs", str(tmp_path))
    python.run("-m", "launcher.runs", *words, check=True)
    launch(tmp_path, *command, "trainer.max_steps=3", code=0)
    assert (record(tmp_path)["state"], record(tmp_path)["step"]) == ("completed", 3)


ONE_STEP = (*DIGITS, *NOTHING, "trainer.max_steps=1")
WHETHER_TORCH = """
import sys
from launcher.__main__ import main
try:
    main()
finally:
    print("torch" in sys.modules)
"""


@pytest.mark.parametrize(
    "where", [(), ("dispatch.nproc=2",), ("-m",)], ids=["run", "ranks", "sweep"]
)
def test_a_completed_run_asked_for_again_loads_no_torch(completed, where):
    words = (f"paths.outputs={completed}", *ONE_STEP, *where)
    again = python.run("-c", WHETHER_TORCH, *words, env=ENVIRONMENT, real=True, check=True)
    assert "complete already (step 1): nothing to do." in again.stdout
    assert "Changed since" not in again.stdout
    assert again.stdout.splitlines()[-1] == "False"


@pytest.fixture(scope="module")
def completed(tmp_path_factory):
    outputs = tmp_path_factory.mktemp("completed")
    launch(outputs, *ONE_STEP, code=0)
    return outputs


def test_a_run_without_checkpoints_trains_again_and_says_so(tmp_path):
    command = split("trainer.max_steps=4 hooks.logging.interval=2 run.name=unsaved run.id=a")
    command += DIGITS
    unsaved = (*command, "hooks=[logging]")
    stopped = launch(tmp_path, *unsaved, *stop_at(3), code=143)
    assert "at step 3; the same command starts at step 0 again." in stopped.output
    done = launch(tmp_path, *unsaved, code=0)
    assert done.output.count("hooks has no checkpointing") == 1
    assert "To evaluate" not in done.output and "To export" not in done.output
    attempt = record(tmp_path)["attempts"][-1]
    assert (attempt["start_step"], attempt["outcome"]) == (0, "completed")
    assert [line["step"] for line in metrics(tmp_path)] == [2, 4]
    saved = launch(tmp_path, *command)
    assert saved.returncode == 0 and record(tmp_path)["checkpoint"] == 4, saved.output
    longer = launch(tmp_path, *unsaved, "trainer.max_steps=6", code=2)
    assert "cannot resume its checkpoint of step 4" in longer.output


def test_lost_checkpoints_are_not_a_silent_start_over(tmp_path):
    command = (*DIGITS, "hooks.evaluation.interval=0", "trainer.max_steps=6")
    launch(tmp_path, *command, *stop_at(3), code=143)
    shutil.rmtree(run_folder(tmp_path) / "checkpoints")
    before = record(tmp_path)
    rejected = launch(tmp_path, *command, code=2)
    assert "run.json says that step 3 was saved" in rejected.output
    assert "run.resume=never" in rejected.output and "run.tag=" in rejected.output
    assert record(tmp_path) == before
    over = launch(tmp_path, *command, "run.resume=never")
    assert over.returncode == 0 and record(tmp_path)["attempts"][-1]["start_step"] == 0, over.output


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """A run that is paused, and one that is complete."""
    outputs = tmp_path_factory.mktemp("two")
    for name, more in (("paused", "trainer.pause_at=20"), ("complete", "trainer.max_steps=20")):
        launch(outputs, *REJECTED, f"run.id={name}", *COMMON, more, code=0)
    return outputs


REJECTED = (*DIGITS, "run.name=rejected", "hooks.checkpointing.keep_previous=9")
DDP = ("strategy=ddp", "dispatch.nproc=2")
OTHER = ("seed=7", "optimizer.lr=1", "trainer.max_steps=60")
"""They must not get into the run's configuration."""


@pytest.mark.parametrize(
    ("name", "overrides", "sentence"),
    [
        ("complete", ["run.resume=99"], "run.resume=99: .*runs rollback RUN 99"),
        ("complete", ["run.resume=never"], "run.resume=never: "),
        ("complete", ["model.hidden_dim=8"], "The weights do not fit the model: "),
        ("paused", [*DDP, "optimizer=lion"], "The optimizer is Lion, 2 groups; .* AdamW"),
    ],
    ids=str,
)
def test_a_rejected_command_leaves_a_run_as_it_was(two_runs, name, overrides, sentence):
    def content() -> dict[str, bytes | None]:
        paths = sorted(two_runs.rglob("*"))
        return {str(path): path.read_bytes() if path.is_file() else None for path in paths}

    before = content()
    done = launch(two_runs, *REJECTED, f"run.id={name}", *COMMON, *OTHER, *overrides)
    assert done.returncode == 2 and "Traceback" not in done.output, done.output
    assert re.search(sentence, done.output.splitlines()[-1]), done.output
    assert content() == before


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The outputs of a run that nothing has stopped."""
    outputs = tmp_path_factory.mktemp("whole")
    launch(outputs, *COMMON, *DIGITS, code=0)
    return outputs


@pytest.mark.parametrize(
    ("step", "moment"), [(44, "forward"), (60, "evaluation"), (60, "close")], ids=str
)
def test_kill_9_loses_an_interval_at_most(tmp_path, whole, step, moment):
    """The summary in run.json is read from metrics.jsonl again, at the next start and at the
    end."""
    # Else a slow disk may still be at the one before.
    durable = "hooks.checkpointing.asynchronous=false"
    launch(tmp_path, *COMMON, *DIGITS, durable, *stop_at(step, moment, "SIGKILL"), code=-9)
    launch(tmp_path, *COMMON, *DIGITS, code=0)
    ours, others = record(tmp_path), record(whole)
    first, second = ours["attempts"]
    assert second["start_step"] >= step - 15 and second["launched"] <= second["started"]
    if step == 44:
        assert (first["outcome"], second["outcome"]) == ("killed", "completed")
        parts = {"imports", "build", "checkpoint", "first_step"}
        # A forked process finds Python started.
        noted = {*second["seconds"]} - {"python"}
        assert {"starting", "evaluating", "saving"} | parts == noted
        assert sum(second["seconds"][part] for part in parts) > 0
    assert final_state(tmp_path) == final_state(whole)
    assert metrics(tmp_path) == metrics(whole)
    assert work(tmp_path)[2] == work(whole)[2], "the names of the files"
    for key in ("state", "step", "loss", "best", "checkpoint"):
        assert ours[key] == others[key], key
    newest, expected = (data["logged"]["newest"] for data in (ours, others))
    names = [name for name in expected if not is_measured(name)]
    assert [newest[name] for name in names] == [expected[name] for name in names]
    assert newest["train/loss"][0] == ours["loss"]


def test_resume_modes(tmp_path):
    command, outputs = (*DIGITS, *COMMON), tmp_path / "outputs"
    none_yet = launch(outputs, *command, "run.resume=must", code=2)
    assert "run.resume=must" in none_yet.output
    assert not outputs.exists(), "a new run that is rejected leaves nothing"
    save_file({"other.weight": torch.ones(2)}, file := tmp_path / "other.safetensors")
    misfit = launch(outputs, *command, f"run.init_from={file}")
    assert misfit.returncode == 2 and "none of its weights" in misfit.output, misfit.output
    assert not outputs.exists()
    launch(outputs, *command, *stop_at(20), code=143)
    folder = run_folder(outputs)
    named = launch(outputs, *command, f"run.id={folder.name}", "optimizer.lr=0.02", code=0)
    assert "Changed since the checkpoint: optimizer.lr" in named.output
    rates = [line["train/lr/decay"] for line in metrics(outputs) if "train/lr/decay" in line]
    assert max(rates) > 0.003, "it counts"


def test_pauses_leave_no_trace(tmp_path, whole):
    """`trainer.pause_at` is not part of the identity, and may be any step."""
    parts = tmp_path / "parts"
    for pause_at, step in (("13", 13), ("30", 30), ("8", 30)):
        done = launch(parts, *COMMON, *DIGITS, f"trainer.pause_at={pause_at}", code=0)
        now = record(parts)
        assert (now["state"], now["step"], steps(parts)[-1]) == ("paused", step, step)
        assert now["attempts"][-1]["outcome"] == "paused"
    assert "is paused at step 30 already: nothing to do" in done.output
    assert len(now["attempts"]) == 2
    last = launch(parts, *COMMON, *DIGITS, "trainer.pause_at=1000", code=0)
    assert "Changed since the checkpoint" not in last.output
    assert record(parts)["state"] == "completed"
    assert final_state(parts) == final_state(whole)
    assert metrics(parts) == metrics(whole)
    assert_same_work(parts, whole, [13])
