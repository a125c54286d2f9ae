"""`runs rollback`: what is later than a checkpoint is set aside, also over kills."""

import json
import os
import shutil
from pathlib import Path

import pytest

from launcher.checkpoint.remote import RemoteStore, run_url
from launcher.checkpoint.store import CheckpointStore
from launcher.remaining import Train, remaining
from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from launcher.rundir.record_format import read_record
from launcher.runs.__main__ import main
from support.crash import killed
from support.stores import save

STEPS = (5, 10, 15, 20)


@pytest.fixture
def folder(make_run):
    """A completed run with four checkpoints, lines, images and evaluations."""
    best = {"metric": "val/loss", "value": 0.1, "step": 20}
    folder = make_run("gpt", "1a2b", step=20, best=best)
    for step in STEPS:
        save(CheckpointStore(folder.checkpoints), step, best=step in (5, 20))
        (folder.path / "images" / str(step)).mkdir(parents=True)
    for name in ("metrics.jsonl", "media.jsonl", "evaluations.jsonl"):
        rows = [{"step": step, "train/loss": float(step)} for step in range(1, 21)]
        (folder.path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def config_of(folder: RunFolder) -> dict:
    return {
        "run": {"dir": str(folder.path), "resume": "auto", "identity_exclude": []},
        "trainer": {"max_steps": 20},
        "hooks": {"checkpointing": {"interval": 5}},
        "data": {},
    }


def test_all_that_is_later_is_set_aside(runs, folder):
    code, output, error = runs("rollback", "1a2b", "10")
    assert (code, error) == (0, "")
    assert "abandoned-step-00000015" in output and "is at step 10." in output
    store = CheckpointStore(folder.checkpoints)
    assert store.steps() == [5, 10] and store.linked("latest") == 10 and store.linked("best") == 5
    for name in ("metrics", "media", "evaluations"):
        assert steps_in(folder.path / f"{name}.jsonl") == [*range(1, 11)]
        assert steps_in(folder.path / f"abandoned-{name}.jsonl") == [*range(11, 21)]
    images = sorted(entry.name for entry in (folder.path / "images").iterdir())
    assert images == ["10", "5", "abandoned-15", "abandoned-20"]
    record = read_record(folder.record_path)
    expected = {"state": "paused", "step": 10, "checkpoint": 10, "loss": 10.0, "best": None}
    assert {key: record[key] for key in expected} == expected
    assert record["logged"]["newest"]["train/loss"] == [10.0, 10]
    assert remaining(config_of(folder), folder) == Train(10)


def test_a_second_rollback_and_one_to_the_newest(runs, folder):
    assert runs("rollback", "1a2b", "20")[:2] == (
        0,
        "gpt/1a2b: step 20 is its newest: nothing to do.\n",
    )
    assert read_record(folder.record_path)["state"] == "completed"
    assert runs("rollback", "1a2b", "15")[0] == 0
    before = sorted(os.listdir(folder.path))
    assert "nothing to do" in runs("rollback", "1a2b", "step-00000015")[1]
    assert sorted(os.listdir(folder.path)) == before
    code, output, _ = runs("rollback", "1a2b", "best", "--json")
    assert code == 0 and json.loads(output) == {
        "run": "gpt/1a2b",
        "step": 5,
        "set_aside": {
            "checkpoints": ["abandoned-step-00000015", "abandoned-step-00000010"],
            "lines": 30,
        },
    }
    assert steps_in(folder.path / "abandoned-metrics.jsonl") == [*range(16, 21)]
    assert steps_in(folder.path / "abandoned-metrics.2.jsonl") == [*range(6, 16)]


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        ("12", "'12': gpt/1a2b has no such checkpoint; the nearest are 10 and 15."),
        ("0", "'0': gpt/1a2b has no such checkpoint; the nearest is 5."),
        ("99", "'99': gpt/1a2b has no such checkpoint; the nearest is 20."),
        ("latest", "'latest': should be the step of a checkpoint, or best."),
        ("../5", "'../5': should be the step of a checkpoint, or best."),
        ("-1", "'-1': should be the step of a checkpoint, or best."),
    ],
)
def test_a_step_without_a_checkpoint_is_rejected(runs, folder, step, sentence):
    before = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*")}
    code, output, error = runs("rollback", "1a2b", step)
    assert (code, output) == (2, "") and error.startswith(sentence)
    assert {path: path.stat().st_mtime_ns for path in folder.path.rglob("*")} == before


def test_a_damaged_checkpoint_is_rejected(runs, folder):
    shard = folder.checkpoints / "step-00000010" / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")
    code, _, error = runs("rollback", "1a2b", "10")
    assert code == 2 and "step-00000010 is damaged: shard-00000.safetensors has changed" in error
    assert CheckpointStore(folder.checkpoints).steps() == [*STEPS]


def test_a_running_run_is_rejected(runs, make_run):
    folder = make_run("gpt", "77f0", state="running")
    for step in (5, 10):
        save(CheckpointStore(folder.checkpoints), step)
    code, _, error = runs("rollback", "77f0", "5")
    assert code == 2 and f"process {os.getpid()} on " in error and "is on this run" in error
    assert CheckpointStore(folder.checkpoints).steps() == [5, 10]


@pytest.mark.parametrize("state", ["queued", "failed", "preempted", "stale"])
def test_the_state_of_a_run_that_has_not_ended_well_stays(runs, make_run, state):
    """`retry` submits it, and a queued job continues from the step."""
    folder = make_run("gpt", "77f0", state=state, step=12)
    for step in (5, 10):
        save(CheckpointStore(folder.checkpoints), step)
    if state == "queued":
        RunRecord(folder).queue()
    assert runs("rollback", "77f0", "5")[0] == 0
    record = read_record(folder.record_path)
    assert record["state"] == ("failed" if state == "stale" else state) and record["step"] == 5
    if state == "stale":
        assert (record["attempts"][-1]["outcome"], record["attempts"][-1]["end_step"]) == (
            "killed",
            12,
        )


def test_a_copy_does_not_roll_its_original_back(runs, folder, tmp_path):
    shutil.move(folder.checkpoints, tmp_path / "elsewhere")
    folder.checkpoints.symlink_to(tmp_path / "elsewhere")
    copy = shutil.copytree(folder.path, tmp_path / "copy", symlinks=True)
    code, _, error = runs("rollback", copy, "10")
    assert (code, error) == (
        2,
        "'gpt/1a2b': is a copy, and its checkpoints are the original's.\n",
    )
    assert CheckpointStore(folder.checkpoints).steps() == [*STEPS]
    assert runs("rollback", "1a2b", "10")[0] == 0
    assert CheckpointStore(folder.checkpoints).steps() == [5, 10]


def test_the_remote_copy_is_rolled_back_too(runs, make_run, tmp_path):
    url = f"file://{tmp_path}/there"
    folder = make_run("gpt", "77f0", config={"hooks": {"checkpointing": {"remote": url}}})
    store = RemoteStore(folder.checkpoints, run_url(url, folder.path))
    for step in STEPS:
        save(store, step)
    assert runs("rollback", "77f0", "10")[0] == 0
    assert store.remote_steps() == store.steps() == [5, 10]
    assert len([*(tmp_path / "there/gpt/77f0").glob("abandoned-step-*")]) == 2
    newest = store.newest_valid()
    assert newest is not None and newest[1].step == 10


def test_a_kill_at_any_call_leaves_a_run_that_resumes(folder, outputs, tmp_path, capsys):
    """And the repeated command does the rest."""
    template = tmp_path / "template"
    shutil.copytree(folder.path, template, symlinks=True)
    words = ["rollback", "1a2b", "10", "--outputs", str(outputs)]
    kill_at, died, newest = 0, True, set()
    while died:
        kill_at += 1
        shutil.rmtree(folder.path)
        shutil.copytree(template, folder.path, symlinks=True)
        died, _ = killed(lambda: main(words) and None, kill_at)
        store = CheckpointStore(folder.checkpoints)
        store.recover()
        valid = store.newest_valid()
        assert valid is not None and read_record(folder.record_path)
        newest.add(valid[1].step)
        if valid[1].step < 20:
            assert remaining(config_of(folder), folder) == Train(valid[1].step), kill_at
        assert main(words) == 0
        assert store.steps() == [5, 10]
        for name in ("metrics", "media", "evaluations"):
            assert steps_in(folder.path / f"{name}.jsonl") == [*range(1, 11)]
            assert steps_in(folder.path / f"abandoned-{name}.jsonl") == [*range(11, 21)]
        record = read_record(folder.record_path)
        assert (record["state"], record["step"], record["loss"]) == ("paused", 10, 10.0)
        assert remaining(config_of(folder), folder) == Train(10)
    capsys.readouterr()
    assert newest == {10, 15, 20} and kill_at > 20
