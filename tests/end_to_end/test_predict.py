"""job=predict: the same file on any number of ranks and after kills, and what it rejects."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from launcher.config.schema import validate
from launcher.errors import ConfigError
from launcher.jobs.predict import Parts, PredictJob
from support import python
from support.composition import composed
from support.runner import launch, run_folder, start

COUNT = 203
TABLE = ("model=mlp", "model.hidden_dim=8", "data=table", "data.target=side", "data.num_classes=2")
TRAIN = (*TABLE, "data.features=[x,y]", "trainer.max_steps=4", "data.batch_size=8")


def write(path: Path, has_target: bool) -> Path:
    rows = [
        {"x": i % 7, "y": i / 100} | ({"side": int(i % 7 > 3)} if has_target else {})
        for i in range(COUNT)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run of two ranks, and the command of its predictions."""
    folder = tmp_path_factory.mktemp("trained")
    ranks = ("strategy=ddp", "dispatch.nproc=2")
    train = [*TRAIN, f"data.files={write(folder / 'train.jsonl', True)}", *ranks]
    done = launch(folder / "outputs", *train)
    assert done.returncode == 0, done.output
    new = write(folder / "new.jsonl", False)
    return folder, [*train, "job=predict", f"data.predict={new}", "job.batch_size=1"]


def test_killed_and_continued_on_another_number_of_ranks(trained: tuple[Path, list[str]]) -> None:
    folder, command = trained
    outputs, straight, killed = folder / "outputs", folder / "a.jsonl", folder / "b.jsonl"
    done = launch(outputs, *command, f"job.file={straight}")
    assert done.returncode == 0, done.output
    words = (*command, f"job.file={killed}")
    process = start("-m", "launcher", f"paths.outputs={outputs}", *words)
    parts = killed.with_name(f".{killed.name}.parts")
    while len(list(parts.glob("0*.jsonl"))) < 2:
        assert process.poll() is None or killed.exists(), process.stdout.read()
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    # The model is elsewhere than its training data, and one rank continues.
    (folder / "train.jsonl").rename(folder / "away.jsonl")
    try:
        one = ("strategy=none", f"--data={folder}/new.jsonl", f"--out={killed}", "job.batch_size=1")
        run = run_folder(outputs).name
        done = python.run(
            "-m", "launcher.runs", "predict", run, *one, "--outputs", str(outputs), cwd=folder
        )
        assert done.returncode == 0, done.stderr
        assert "parts are there" in done.stdout + done.stderr or "complete" in done.stderr
        assert killed.read_bytes() == straight.read_bytes() and not parts.exists()
        again = launch(outputs, *command, f"job.file={killed}")
        assert again.returncode == 0 and "is complete already" in again.output, again.output
    finally:
        (folder / "away.jsonl").rename(folder / "train.jsonl")
    rows = [json.loads(line) for line in killed.read_text().splitlines()]
    assert [row["index"] for row in rows] == list(range(COUNT))
    for row in rows:
        assert list(row) == ["index", "prediction", "logits"], "the file has no targets"
        assert row["prediction"] == int(row["logits"][1] > row["logits"][0])


def test_parquet_has_the_same_rows(trained: tuple[Path, list[str]]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    folder, command = trained
    files = [folder / "c.jsonl", folder / "c.parquet"]
    for file in files:
        one = ("strategy=none", "dispatch.nproc=1", "job.batch_size=7", *_id(folder / "outputs"))
        done = launch(folder / "outputs", *command, *one, f"job.file={file}")
        assert done.returncode == 0, done.output
    rows = [json.loads(line) for line in files[0].read_text().splitlines()]
    stored = parquet.read_table(files[1]).to_pylist()
    assert len(rows) == len(stored) == COUNT
    for row, other in zip(rows, stored, strict=True):
        # JSON lines have the shortest digits of a float32.
        assert other.pop("logits") == pytest.approx(row.pop("logits"), rel=1e-6)
        assert other == row


def test_a_signal_stops_it_and_columns_are_chosen(trained: tuple[Path, list[str]]) -> None:
    folder, command = trained
    outputs = folder / "outputs"
    wanted = f"data.predict={folder / 'train.jsonl'}", "job.columns=[targets,index]"
    done = launch(outputs, *command, *wanted, "strategy=none", "dispatch.nproc=1", *_id(outputs))
    assert done.returncode == 0, done.output
    lines = (run_folder(outputs) / "predictions" / "train.jsonl").read_text().splitlines()
    assert len(lines) == COUNT and json.loads(lines[4]) == {"index": 4, "targets": 1}
    (log,) = [
        json.loads(line)
        for line in (run_folder(outputs) / "predictions.jsonl").read_text().splitlines()
        if json.loads(line)["file"].endswith("train.jsonl")
    ]
    assert log["rows"] == COUNT and log["step"] == 4 and log["columns"] == ["index", "targets"]


def _id(outputs: Path) -> list[str]:
    return [f"run.id={run_folder(outputs).name}", "run.name=mlp-table"]


REJECTED = {
    "data.predict=null: job=predict needs new data": ["data.predict=null"],
    "data.predict='nope.csv': matches no file": ["data.predict=nope.csv"],
    "the data source DigitsData reads no new data": ["data=digits"],
}


@pytest.mark.parametrize("message", REJECTED)
def test_it_needs_new_data(message: str) -> None:
    words = REJECTED[message]
    rest = TRAIN if "data=digits" not in words else ("model=mlp",)
    files = [] if "data=digits" in words else ["data.files=gone.csv"]
    with pytest.raises(ConfigError, match=message):
        validate(composed([*rest, *files, "job=predict", *words]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"file": "a.txt"}, "job.file=a.txt: should end in .jsonl or .parquet"),
        ({"columns": ["logit"]}, "logit is not a column"),
        ({"columns": []}, "names no column"),
    ],
)
def test_its_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PredictJob(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 7, 8, 9, 511, 512, 513, 8000, 100_000])
@pytest.mark.parametrize("size", [1, 4, 100])
def test_the_parts_have_each_sample_once(tmp_path: Path, count: int, size: int) -> None:
    parts = Parts(tmp_path / "p.jsonl", count, size, {})
    ranges = [each for number in range(len(parts)) for each in parts.batches(number)]
    assert [at for start, stop in ranges for at in range(start, stop)] == list(range(count))
    assert all(stop - start == size for start, stop in ranges[:-1])
    assert sum(parts.ends(stop) for _, stop in ranges) == len(parts)
