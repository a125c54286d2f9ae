"""Differences between two trainings: tensors, states, lines of metrics."""

from pathlib import Path
from typing import Any

import pytest
import torch

from launcher import JsonlHook, LoggingHook, MemoryHook
from launcher.checkpoint.manifest import Manifest
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.saver import Payload, Saver
from launcher.checkpoint.store import CheckpointStore
from launcher.process.ranks import Ranks
from launcher.proof.diff import checkpoint_differences, diff, line_differences, lines_of
from launcher.rundir.folder import RunFolder
from launcher.rundir.history import read_rows
from support.toy import Toy

A, B = torch.arange(6.0).reshape(2, 3), torch.zeros(2, dtype=torch.bfloat16)
PARTS = {
    "tensors": {"model/a": A, "model/b": B},
    "rank_state": {
        "rng": {"torch": torch.arange(3)},
        "hooks": {"Mine": {"count": 3, "seen": [1, 2]}},
    },
    "global_state": {"step": 1, "max_steps": 1, "lr": 0.1},
}


def saved(root: Path, **changes: Any) -> Path:
    payload = Payload(1, Manifest(1, 1, "none", "sharded"), **PARTS | changes)
    Saver(CheckpointStore(root), Ranks(), Retention()).save(payload, wait=True)
    return root / "step-00000001"


def with_bit(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """A copy in which the lowest bit of one element has changed."""
    copy = tensor.clone()
    copy.view(-1).view(torch.int32 if tensor.itemsize == 4 else torch.int16)[index] ^= 1
    return copy


@pytest.mark.parametrize(
    ("part", "change", "expected"),
    [
        ("tensors", {}, []),
        ("global_state", {"max_steps": 9}, []),
        ("tensors", {"model/a": with_bit(A, 4)},
         ["model/a: 1 of 6 elements, the first at [1, 1]: 4.000000476837158 instead of 4.0; the"
          " largest distance is 4.77e-07"]),
        ("tensors", {"model/b": -B},
         ["model/b: 2 of 2 elements, the first at [0]: -0.0 instead of 0.0; the largest distance"
          " is 0"]),
        ("tensors", {"model/b": torch.zeros(3)},
         ["model/b: torch.float32 [3] instead of torch.bfloat16 [2]"]),
        ("tensors", {"model/c": B}, ["model/c: only one of them has it"]),
        ("global_state", {"lr": 0.2}, ["state/lr: 0.2 instead of 0.1"]),
        ("rank_state", {"rng": {"torch": torch.tensor([0, 1, 3])}},
         ["rank 0/rng/torch: 1 of 3 elements, the first at [2]: 3 instead of 2"]),
        ("rank_state", {"hooks": {"Mine": {"count": 4, "seen": [1, 3]}}},
         ["rank 0/hooks/Mine/count: 4 instead of 3", "rank 0/hooks/Mine/seen/1: 3 instead of 2"]),
        ("rank_state", {"hooks": {"Mine": {"step_time": 4}}},
         ["rank 0/hooks/Mine/count: None instead of 3",
          "rank 0/hooks/Mine/seen: None instead of [1, 2]"]),
    ],
)  # fmt: skip
def test_differences_name_the_tensor_the_element_and_the_state(tmp_path, part, change, expected):
    first, second = saved(tmp_path / "a"), saved(tmp_path / "b", **{part: PARTS[part] | change})
    assert checkpoint_differences(first, second) == expected


def test_a_training_that_ended_at_another_step_differs(tmp_path):
    run, copy = (RunFolder(tmp_path / name) for name in ("run", "copy"))
    saved(run.checkpoints)
    (run.path / "metrics.jsonl").write_text('{"step":1,"train/loss":2.0,"time":3.0}\n')
    found = diff(run, copy, 0, 1, ("the run", "the replay"))
    assert found.texts() == [
        "metrics.jsonl, step 1: only the run has a line of metrics.jsonl",
        "checkpoint, the last one is of step 0 instead of 1",
    ]
    assert not found.is_equal and (found.tensors, found.lines) == (0, 1)


NAN = float("nan")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}, ["b 3 instead of 2", "c 4 instead of None"]),
        ({"a": NAN, "b": 0.1}, {"a": NAN, "b": 0.1}, []),
        ({"a": 0.0}, {"a": -0.0}, ["a -0.0 instead of 0.0"]),
    ],
)
def test_numbers_of_a_line_are_equal_if_their_bits_are(before, after, expected):
    found = [*line_differences({3: before}, {3: after}, ("a", "b"))]
    assert found == [f"step 3: {text}" for text in expected]


def test_the_newest_line_of_a_step_counts_without_times(tmp_path):
    (folder := RunFolder(tmp_path)).metrics_path.write_text(
        '{"step":2,"train/loss":3.0,"attempt":1}\n{"step":4,"train/loss":2.0,"attempt":1}\n'
        '{"step":4,"train/loss":1.0,"time":9.0,"attempt":2}\n{"step":6,"train/loss":0.5}\n'
    )
    assert lines_of(folder, 2, 4) == {4: {"step": 4, "train/loss": 1.0}}


def test_what_is_measured_is_not_compared(tmp_path):
    folder = RunFolder(tmp_path)
    Toy([JsonlHook(), MemoryHook(1), LoggingHook(1)], 1, tmp_path).train()
    logged, compared = (*read_rows(folder.metrics_path),)[-1], lines_of(folder, 0, 1)[1]
    left_out = {"time", "attempt", "memory/rank_0"}
    left_out |= {f"train/{name}" for name in ("step_time", "data_time", "max_memory")}
    assert logged.keys() - compared.keys() == left_out
