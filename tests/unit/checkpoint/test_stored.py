"""A checkpoint, opened: its tensors, its global state, and the state of each rank."""

from pathlib import Path

import torch

from launcher.checkpoint.manifest import Manifest
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.saver import Payload, Saver
from launcher.checkpoint.store import CheckpointStore
from launcher.checkpoint.stored import StoredCheckpoint, weights_digest
from launcher.process.ranks import Ranks


def save(root: Path, tensors: dict[str, torch.Tensor]) -> Path:
    payload = Payload(
        step=1,
        manifest=Manifest(1, 1, "none", "sharded"),
        tensors=tensors,
        rank_state={"rng": torch.arange(3), "plain": (1, "a")},
        global_state={"lr": 0.1, "moments": [torch.ones(2)]},
        texts={"config.yaml": "a: 1\n"},
    )
    Saver(CheckpointStore(root), Ranks(), Retention()).save(payload, wait=True)
    return root / "step-00000001"


WEIGHTS = {
    "model/a": torch.arange(6.0).reshape(2, 3),
    "model/b": torch.ones(1, dtype=torch.bfloat16),
}


def test_all_that_was_saved(tmp_path: Path) -> None:
    stored = StoredCheckpoint(save(tmp_path, WEIGHTS))
    assert set(stored.names()) == set(WEIGHTS)
    assert all(torch.equal(stored.read(name), tensor) for name, tensor in WEIGHTS.items())
    assert stored.meta["lr"] == 0.1 and torch.equal(stored.meta["moments"][0], torch.ones(2))
    state = stored.rank_state(0)
    assert (
        state is not None
        and state["plain"] == (1, "a")
        and torch.equal(state["rng"], torch.arange(3))
    )
    assert stored.rank_state(1) is None
    assert (stored.path / "config.yaml").read_text() == "a: 1\n"


def test_the_digest_is_of_the_weights_alone(tmp_path: Path) -> None:
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
