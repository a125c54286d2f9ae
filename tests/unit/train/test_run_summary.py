"""Lines that a run prints at its start and at its end."""

import io
import json
import shutil
from pathlib import Path

import pytest
from torch import nn

from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from launcher.train.run_summary import end_lines, format_time, model_lines


class Tied(nn.Module):
    """Embedding and head share their weights; the body is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(100, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 100, bias=False)
        self.head.weight = self.embedding.weight
        self.body.requires_grad_(False)


def test_tied_parameters_count_once():
    assert list(model_lines(Tied())) == ["Model: Tied, 872 parameters, 800 trainable"]
    assert list(model_lines(Tied(), by_module=True))[1:] == [
        "  embedding: Embedding, 800",
        "  body: Linear, 72, 0 trainable",
        "  head: Linear, 0",
    ]


def finished(folder: Path, outcome: str, losses: list[float]) -> RunRecord:
    """The record of a run that was resumed once, an hour later."""
    run = RunFolder(folder / "gpt" / "1a2b").create()
    run.metrics_path.write_text(
        "".join(json.dumps({"step": n, "train/loss": x}) + "\n" for n, x in enumerate(losses))
    )
    (run.checkpoints / "step-00000010").mkdir(parents=True)
    (run.checkpoints / "step-00000010" / "manifest.json").touch()
    seconds = 0.0
    record = RunRecord(run, clock=lambda: seconds, timer=lambda: seconds)
    attempt = {"max_steps": 10, "world_size": 1, "strategy": "none"}
    record.begin_attempt(start_step=0, **attempt)
    seconds = 10.0
    record.end_attempt("preempted", end_step=5, signal="SIGTERM", exit_code=143)
    seconds = 3600.0
    record.begin_attempt(start_step=5, **attempt)
    seconds = 3665.0
    best = {"metric": "val/loss", "value": 1.5e-9, "step": 8}
    record.end_attempt(outcome, end_step=10, best=best)  # type: ignore[arg-type]
    return record


def test_the_end_of_a_run(tmp_path):
    record = finished(tmp_path, "completed", [4.0, 3.0, 2.0, 1e-7])
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    assert list(end_lines(record, "my runs", stream)) == [
        "Best: val/loss 1.5000e-09 at step 8",
        "Loss: 4.000 to 1.000e-07  ███▁",
        f"Checkpoint: {record.folder.checkpoints}/step-00000010",
        "To evaluate: python -m launcher.runs evaluate gpt/1a2b --outputs 'my runs'",
        "To export: python -m launcher.runs export gpt/1a2b --outputs 'my runs'",
        "To plot: python -m launcher.runs plot gpt/1a2b --outputs 'my runs'",
    ]
    assert format_time(record) == "0:01:05 (0:01:15 in 2 attempts)"


@pytest.mark.parametrize("losses", [[], [2.0]])
def test_a_stopped_run_names_the_way_to_resume_it(tmp_path, losses):
    record = finished(tmp_path, "preempted", losses)
    ascii_stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert list(end_lines(record, "outputs", ascii_stream))[2:] == [
        "To resume: python -m launcher.runs resume gpt/1a2b",
        "To plot: python -m launcher.runs plot gpt/1a2b",
    ]


@pytest.mark.parametrize("outcome", ["completed", "preempted"])
def test_a_run_that_saved_nothing_names_no_command_that_needs_it(tmp_path, outcome):
    record = finished(tmp_path, outcome, [])
    shutil.rmtree(record.folder.checkpoints)
    record.folder.metrics_path.unlink()
    assert "To " not in " ".join(end_lines(record, "outputs", io.StringIO()))
