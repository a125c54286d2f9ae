"""Values that come later than the step they belong to: how they are written, and which results
count."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher import BaseHook, CheckpointingHook, EvaluationHook, JsonlHook
from launcher.errors import ConfigError
from launcher.hooks.media import MediaHook
from launcher.process import signals
from launcher.rundir.evaluations import Evaluations
from launcher.rundir.folder import RunFolder
from support.toy import Toy


class Late(BaseHook):
    """Logs a value and a matrix of step 2 after step 5, unless something happens after step 4."""

    def __init__(self, event: Any = None):
        self.event, self.pending = event, (2,)

    def on_ready(self, trainer: Any) -> None:
        if trainer.step >= 2:
            trainer.state.awaited = self.pending

    def on_after_step(self, trainer: Any) -> None:
        trainer.log({"train": {"number": float(trainer.step)}})
        if trainer.step == 2:
            trainer.state.awaited = self.pending
        if trainer.step == 4 and self.event is not None:
            self.event()
        if trainer.step == 5:
            assert trainer.logged_step == 5
            with trainer.records_of(2):
                assert trainer.logged_step == 2
                trainer.log({"val": {"loss": 0.5}})
                trainer.log_matrices({"val": {"matrix": torch.eye(2)}})
            trainer.state.awaited = ()


def train(folder: Path, event: Any = None) -> None:
    folder.mkdir(exist_ok=True)
    hooks = [Late(event), MediaHook(clock=lambda: 0.0), CheckpointingHook(3)]
    Toy([*hooks, JsonlHook(clock=lambda: 0.0)], 6, folder).train()


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_lines_are_written_in_order_once_they_are_complete(tmp_path: Path) -> None:
    """A signal leaves the lines that are not complete to the checkpoint; the resumed run writes
    them."""

    def stop() -> None:
        signals.note(15)

    with pytest.raises(signals.SignalExit):
        train(tmp_path, stop)
    assert [line["step"] for line in lines(tmp_path)] == [1]
    train(tmp_path)
    rows = lines(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row.get("val/loss") for row in rows] == [None, 0.5, None, None, None, None]
    assert [(row["step"], row["path"]) for row in lines(tmp_path, "media.jsonl")] == [
        (2, "images/2/val/matrix.png")
    ]
    assert (tmp_path / "images/2/val/matrix.png").is_file()


def test_after_an_error_the_lines_are_written_as_they_are(tmp_path: Path) -> None:
    """They show what led to it. The resumed run writes them again, complete."""

    def fail() -> None:
        raise ArithmeticError("wrong")

    with pytest.raises(ArithmeticError):
        train(tmp_path, fail)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4]
    train(tmp_path)
    rows = lines(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6] and rows[1]["val/loss"] == 0.5


def test_a_result_counts_for_the_checkpoint_that_it_was_computed_from(tmp_path: Path) -> None:
    files = Evaluations(RunFolder(tmp_path))
    checkpoint = files.checkpoint(100)
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("first")
    assert files.result(100) is None and files.arrivals() == {}
    files.write(100, files.manifest(100), {"loss": 0.1 + 0.2})
    assert files.result(100) == {"loss": 0.1 + 0.2}
    (checkpoint / "manifest.json").write_text("saved again")
    assert files.result(100) is None
    (checkpoint / "manifest.json").unlink()
    assert files.result(100) == {"loss": 0.1 + 0.2}, "retention has deleted the checkpoint"
    files.forget(100)
    files.forget(100)
    assert files.result(100) is None
    files.note_arrivals({100: 147})
    assert files.arrivals() == {100: 147}


def test_what_another_process_cannot_repeat_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"device=tpu: should be cpu, cuda, cuda:1 or mps"):
        EvaluationHook(device="tpu")
    evaluation = EvaluationHook(where="process", loader=lambda: [torch.ones(2, 2)])
    with pytest.raises(ConfigError, match=r"where=process: needs a run with a configuration"):
        Toy([evaluation, CheckpointingHook(3)], 2, tmp_path).train()
