from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.checkpoint.manifest import Manifest
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.saver import Payload, Saver
from launcher.checkpoint.store import CheckpointStore
from launcher.process.ranks import Ranks
from launcher.proof.diff import checkpoint_differences, diff
from launcher.rundir.folder import RunFolder

TENSORS = {
    "model/a": torch.arange(6.0).reshape(2, 3),
    "model/b": torch.zeros(2, dtype=torch.bfloat16),
}
RANK = {"rng": {"torch": torch.arange(3)}, "hooks": {"Mine": {"count": 3, "seen": [1, 2]}}}
STATE = {"step": 1, "max_steps": 1, "lr": 0.1}


def saved(root: Path, tensors: Any = TENSORS, rank: Any = RANK, state: Any = STATE) -> Path:
    manifest = Manifest(1, 1, "none", "sharded")
    payload = Payload(1, manifest, tensors=tensors, rank_state=rank, global_state=state)
    Saver(CheckpointStore(root), Ranks(), Retention()).save(payload, wait=True)
    return root / "step-00000001"


def with_bit(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """A copy in which the lowest bit of one element has changed."""
    copy = tensor.clone()
    copy.view(-1).view(torch.int32 if tensor.itemsize == 4 else torch.int16)[index] ^= 1
    return copy


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"state": STATE | {"max_steps": 9}}, []),
        (
            {"tensors": TENSORS | {"model/a": with_bit(TENSORS["model/a"], 4)}},
            [
                "model/a: 1 of 6 elements, the first at [1, 1]: 4.000000476837158 instead of 4.0; "
                "the largest distance is 4.77e-07"
            ],
        ),
        (
            {"tensors": TENSORS | {"model/b": -TENSORS["model/b"]}},
            [
                "model/b: 2 of 2 elements, the first at [0]: -0.0 instead of 0.0; the largest"
                " distance is 0"
            ],
        ),
        (
            {"tensors": TENSORS | {"model/b": torch.zeros(3)}},
            ["model/b: torch.float32 [3] instead of torch.bfloat16 [2]"],
        ),
        ({"tensors": {"model/a": TENSORS["model/a"]}}, ["model/b: only one of them has it"]),
        ({"state": STATE | {"lr": 0.2}}, ["state/lr: 0.2 instead of 0.1"]),
        (
            {"rank": RANK | {"rng": {"torch": torch.tensor([0, 1, 3])}}},
            ["rank 0/rng/torch: 1 of 3 elements, the first at [2]: 3 instead of 2"],
        ),
        (
            {"rank": RANK | {"hooks": {"Mine": {"count": 4, "seen": [1, 3]}}}},
            ["rank 0/hooks/Mine/count: 4 instead of 3", "rank 0/hooks/Mine/seen/1: 3 instead of 2"],
        ),
        (
            {"rank": RANK | {"hooks": {"Mine": {"step_time": 4}}}},
            [
                "rank 0/hooks/Mine/count: None instead of 3",
                "rank 0/hooks/Mine/seen: None instead of [1, 2]",
            ],
        ),
    ],
)
def test_differences_name_the_tensor_the_element_and_the_state(
    tmp_path: Path, change: Any, expected: list[str]
) -> None:
    assert (
        checkpoint_differences(saved(tmp_path / "a"), saved(tmp_path / "b", **change)) == expected
    )


def test_a_training_that_ended_at_another_step_differs(tmp_path: Path) -> None:
    run, copy = (RunFolder(tmp_path / name) for name in ("run", "copy"))
    saved(run.checkpoints)
    (run.path / "metrics.jsonl").write_text('{"step":1,"train/loss":2.0,"time":3.0}\n')
    found = diff(run, copy, 0, 1, ("the run", "the replay"))
    assert found.texts() == [
        "metrics.jsonl, step 1: only the run has a line of metrics.jsonl",
        "checkpoint, the last one is of step 0 instead of 1",
    ]
    assert not found.is_equal and (found.tensors, found.lines) == (0, 1)
