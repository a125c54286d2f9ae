"""job=predict: the same file on any number of ranks and after a kill, and what it rejects."""

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.jobs.predict import PredictJob
from support import python
from support.composition import composed, validate
from support.interrupter import HELD_BY
from support.runner import ENVIRONMENT, launch, run_folder, start
from support.waiting import wait_for

COUNT = 203
MODEL = ("model=mlp", "model.hidden_dim=8", "model._target_=support.interrupter.HeldMLP")
TABLE = ("data=table", "data.target=side", "data.num_classes=2", "data.features=[x,y]")
TRAIN = (*MODEL, *TABLE, "trainer.max_steps=4", "data.batch_size=8")


def write(path: Path, has_target: bool) -> Path:
    rows = [
        {"x": i % 7, "y": i / 100} | ({"side": int(i % 7 > 3)} if has_target else {})
        for i in range(COUNT)
    ]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two ranks, and the command of its predictions."""
    folder = tmp_path_factory.mktemp("trained")
    ranks = ("strategy=ddp", "dispatch.nproc=2")
    train = [*TRAIN, f"data.files={write(folder / 'train.csv', True)}", *ranks]
    launch(folder / "outputs", *train, code=0)
    new = write(folder / "new.csv", False)
    return folder, [*train, "job=predict", f"data.predict={new}", "job.batch_size=1"]


def begin(folder: Path, command: list[str], file: Path) -> tuple[Any, Path]:
    """Start the command that writes `file`; its process, and the folder of the ranks' files, which
    are open and will not be complete."""
    parts, hold = file.with_name(f".{file.name}.parts"), folder / "hold"
    hold.touch()
    words = ("-m", "launcher", f"paths.outputs={folder / 'outputs'}", *command, f"job.file={file}")
    process = start(*words, env={**ENVIRONMENT, HELD_BY: str(hold)})
    wait_for(lambda: process.poll() is not None or len([*parts.glob("[01].jsonl")]) == 2)
    assert process.poll() is None, process.stdout.read()
    return process, parts


def test_a_killed_one_starts_again_on_another_number_of_ranks(trained):
    folder, command = trained
    outputs, straight, killed = folder / "outputs", folder / "a.jsonl", folder / "b.jsonl"
    launch(outputs, *command, f"job.file={straight}", code=0)
    process, parts = begin(folder, command, killed)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    # The model is elsewhere than its training data, and one rank starts again.
    (folder / "train.csv").rename(folder / "away.csv")
    try:
        one = ("strategy=none", f"--data={folder}/new.csv", f"--out={killed}", "job.batch_size=1")
        words = ("predict", run_folder(outputs).name, *one, "--outputs", str(outputs))
        python.run("-m", "launcher.runs", *words, cwd=folder, check=True)
        assert killed.read_bytes() == straight.read_bytes() and not parts.exists()
    finally:
        (folder / "away.csv").rename(folder / "train.csv")
    rows = [json.loads(line) for line in killed.read_text().splitlines()]
    assert [row["index"] for row in rows] == list(range(COUNT))
    for row in rows:
        assert list(row) == ["index", "prediction", "logits"], "the file has no targets"
        assert row["prediction"] == int(row["logits"][1] > row["logits"][0])


def test_a_rank_without_a_batch_makes_the_same_file(trained):
    folder, command = trained
    files = [folder / "one.jsonl", folder / "two.jsonl"]
    one = ("strategy=none", "dispatch.nproc=1", *_id(folder / "outputs"))
    for file, words in zip(files, (one, ()), strict=True):
        job = (f"job.batch_size={COUNT + 1}", f"job.file={file}")
        launch(folder / "outputs", *command, *words, *job, code=0)
    rows = [json.loads(line) for line in files[1].read_text().splitlines()]
    assert [row["index"] for row in rows] == list(range(COUNT))
    assert files[0].read_bytes() == files[1].read_bytes()


def test_another_process_is_named_and_a_signal_leaves_nothing(trained):
    folder, command = trained
    file = folder / "c.jsonl"
    process, parts = begin(folder, command, file)
    second = launch(folder / "outputs", *command, f"job.file={file}", code=2)
    assert "another process is writing it" in second.output
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM and "starts again" in output, output
    assert not parts.exists() and not file.exists()


def test_columns_are_chosen(trained):
    folder, command = trained
    outputs = folder / "outputs"
    other = write(folder / "other.csv", True)
    wanted = f"data.predict=[{folder / 'train.csv'},{other}]", "job.columns=[targets,index]"
    launch(outputs, *command, *wanted, "strategy=none", "dispatch.nproc=1", *_id(outputs), code=0)
    lines = (run_folder(outputs) / "predictions" / "train+other.jsonl").read_text().splitlines()
    assert len(lines) == 2 * COUNT and json.loads(lines[4]) == {"index": 4, "targets": 1}
    notes = (run_folder(outputs) / "predictions.jsonl").read_text().splitlines()
    (log,) = [note for note in map(json.loads, notes) if note["file"].endswith("train+other.jsonl")]
    assert log["rows"] == len(lines) and log["step"] == 4 and log["columns"] == ["index", "targets"]


def _id(outputs: Path) -> list[str]:
    return [f"run.id={run_folder(outputs).name}", "run.name=mlp-table"]


REJECTED = {
    "data.predict: job=predict needs new data; e.g.": ["data.predict=null"],
    "data.predict='nope.csv': matches no file": ["data.predict=nope.csv"],
    "data.predict: job=predict needs new data, which DigitsData does not read": ["data=digits"],
}


@pytest.mark.parametrize("message", REJECTED)
def test_what_is_rejected(message):
    words = REJECTED[message]
    rest = TRAIN if "data=digits" not in words else ("model=mlp",)
    files = [] if "data=digits" in words else ["data.files=gone.csv"]
    with pytest.raises(ConfigError, match=message):
        validate(composed([*rest, *files, "job=predict", *words]))
    with pytest.raises(ConfigError, match=r"job.file=a.parquet: should end in .jsonl."):
        PredictJob(file="a.parquet")
