"""The digest of a checkpoint's weights."""

from pathlib import Path

import torch

from launcher.checkpoint.manifest import Manifest
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.saver import Payload, Saver
from launcher.checkpoint.store import CheckpointStore
from launcher.checkpoint.stored import weights_digest
from launcher.process.ranks import Ranks


def save(root: Path, tensors: dict[str, torch.Tensor]) -> Path:
    payload = Payload(
        step=1,
        manifest=Manifest(1, 1, "none", "sharded"),
        tensors=tensors,
        rank_state={},
        global_state={},
    )
    Saver(CheckpointStore(root), Ranks(), Retention()).save(payload, wait=True)
    return root / "step-00000001"


WEIGHTS = {
    "model/a": torch.arange(6.0).reshape(2, 3),
    "model/b": torch.ones(1, dtype=torch.bfloat16),
}


def test_the_digest_is_of_the_weights_alone(tmp_path):
    digest = weights_digest(save(tmp_path / "a", WEIGHTS))
    same = dict(reversed(WEIGHTS.items())) | {"optimizer/a/exp_avg": torch.ones(2)}
    assert weights_digest(save(tmp_path / "b", same)) == digest
    a = WEIGHTS["model/a"]
    others = [
        {"model/a": torch.zeros(2, 3)},
        {"model/a": a.view(3, 2)},
        {"model/a": a.view(torch.int32)},
    ]
    for number, other in enumerate(others):
        assert weights_digest(save(tmp_path / str(number), WEIGHTS | other)) != digest
