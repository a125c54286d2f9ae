"""hooks.evaluation.where=process: the values, the decisions and the files are those of an
evaluation that blocks, whatever is stopped or killed, and when."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from support import python
from support.runner import (
    ENVIRONMENT,
    launch,
    metrics,
    record,
    run_folder,
    start,
    steps,
    stop_at,
)

COMMON = (
    "model=mlp",
    "data=digits",
    "model.dropout=0.1",
    "hooks.logging.interval=7",
    "hooks.evaluation.interval=10",
)
BESIDE = "hooks.evaluation.where=process"
MATRIX = (
    "+hooks.evaluation.metrics.confusion._target_=torchmetrics.ConfusionMatrix",
    "+hooks.evaluation.metrics.confusion.task=multiclass",
    "+hooks.evaluation.metrics.confusion.num_classes=10",
)


def waiter(waits: dict[int, int], **settings: int) -> str:
    """Training waits after these steps for the result of these."""
    pairs = ",".join(f"{at}:{step}" for at, step in waits.items())
    others = "".join(f",{name}:{value}" for name, value in settings.items())
    return f"+tracker.waiter={{_target_:support.waiter.Waiter,waits:{{{pairs}}}{others}}}"


def arrivals(outputs: Path) -> dict[int, int]:
    saved = json.loads((run_folder(outputs) / "evaluations" / "arrivals.json").read_text())
    return {int(step): arrived for step, arrived in saved.items()}


def matrices(outputs: Path) -> list[Any]:
    lines = (run_folder(outputs) / "media.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["step"], row["key"], row["rows"]) for row in rows]


def test_stops_and_kills_leave_no_trace(tmp_path: Path) -> None:
    """With averaged weights, and a matrix. The run is stopped before the first value has come,
    killed after another one has, and then the evaluating process is killed."""
    words = (
        *COMMON,
        *MATRIX,
        "trainer.max_steps=60",
        "hooks=[default,ema]",
        "hooks.ema.decay=0.5",
        "hooks.ema.evaluate=true",
        "hooks.checkpointing.interval=25",
    )
    inline, beside = tmp_path / "inline", tmp_path / "beside"
    assert launch(inline, *words).returncode == 0
    first = launch(beside, *words, BESIDE, *stop_at(12, group=False))
    assert first.returncode == 143, first.output
    assert [row["step"] for row in metrics(beside)] == [0, 7], "the later lines are not complete"
    kill = stop_at(33, signum="SIGKILL", group=False)
    second = launch(beside, *words, BESIDE, *kill, waiter({13: 10, 25: 20}))
    assert second.returncode == -9, second.output
    before = arrivals(beside)
    assert 13 <= before[10] < 33
    third = launch(beside, *words, BESIDE, waiter({}, kill_at=45), real=True)
    assert third.returncode == 0, third.output
    assert third.output.count("it is started again") == 1
    assert metrics(beside) == metrics(inline)
    assert matrices(beside) == matrices(inline)
    assert before.items() <= arrivals(beside).items()
    assert record(beside)["best"] == record(inline)["best"]
    best = [(run_folder(each) / "checkpoints" / "best").readlink() for each in (inline, beside)]
    assert best[0] == best[1]
    assert steps(beside) == steps(inline)


def test_what_the_values_steer_is_repeated_after_a_rollback(tmp_path: Path) -> None:
    """The learning rate falls and training ends after the same steps again, although the values
    now come at once or later."""
    words = (
        *COMMON,
        BESIDE,
        "trainer.max_steps=200",
        "hooks=[default,early_stopping]",
        "hooks.early_stopping.patience=3",
        "hooks.early_stopping.min_delta=0.05",
        "scheduler=plateau",
        "scheduler.patience=0",
        "hooks.checkpointing.keep_previous=9",
    )
    waits = {17: 10, 23: 20, 46: 30, 52: 40, 61: 50, 77: 60, 90: 70}
    first = launch(tmp_path, *words, waiter(waits))
    assert first.returncode == 0, first.output
    before, arrived, end = metrics(tmp_path), arrivals(tmp_path), record(tmp_path)["step"]
    assert end < 200 and len({row.get("train/lr/decay") for row in before}) > 2
    again = launch(tmp_path, *words, "run.resume=30")
    assert again.returncode == 0, again.output
    assert (metrics(tmp_path), record(tmp_path)["step"]) == (before, end)
    assert arrivals(tmp_path) == arrived


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_one_process_computes_the_values_of_two_ranks(tmp_path: Path, strategy: str) -> None:
    words = (
        *COMMON,
        "trainer.max_steps=25",
        "trainer.micro_batch_size=16",
        "dispatch.nproc=2",
        f"strategy={strategy}",
    )
    inline, beside = tmp_path / "inline", tmp_path / "beside"
    for outputs, where in ((inline, []), (beside, [BESIDE, waiter({15: 10})])):
        done = launch(outputs, *words, *where)
        assert done.returncode == 0, done.output
    assert arrivals(beside)[10] < 25
    assert metrics(beside) == metrics(inline)


def test_every_checkpoint_of_a_run_is_evaluated_once_while_it_trains(tmp_path: Path) -> None:
    words = (*COMMON, "trainer.max_steps=60", "hooks.checkpointing.keep_interval=10")
    pacer = "+tracker.pacer={_target_:support.pacer.Pacer,seconds:0.1}"
    training = start("-m", "launcher", f"paths.outputs={tmp_path}", *words, pacer)
    while not list(tmp_path.glob("*/*/checkpoints/step-00000010/manifest.json")):
        assert training.poll() is None
        time.sleep(0.05)
    folder = run_folder(tmp_path)
    follow = (folder.name, "--outputs", str(tmp_path), "--follow", *MATRIX)
    first = python.run("-m", "launcher.runs", "evaluate", *follow, env=ENVIRONMENT, check=True)
    assert training.wait() == 0 and "step-00000010" in first.stdout
    rows = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    logged = {row["step"]: row.get("val/loss") for row in metrics(tmp_path)}
    assert [(row["step"], row["val/loss"]) for row in rows] == [
        (step, logged[step]) for step in range(10, 61, 10)
    ]
    assert all(len(row["val/confusion"]) == 10 for row in rows)
    again = python.run("-m", "launcher.runs", "evaluate", *follow, env=ENVIRONMENT, check=True)
    assert again.stdout == ""
