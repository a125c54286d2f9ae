"""Checkpoints of a few numbers, for tests of the store."""

import torch

from launcher.checkpoint.manifest import Manifest
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.saver import Payload, Saver
from launcher.checkpoint.store import CheckpointStore
from launcher.run.ranks import Ranks


def save(store: CheckpointStore, step: int, value: float = 0.0, best: bool = False, keep: int = 9) -> None:
    payload = Payload(
        step=step,
        manifest=Manifest(step, 1, "none", "sharded"),
        tensors={"model/w": torch.full((4,), value or float(step))},
        rank_state={"rng": torch.arange(3)},
        global_state={"step": step},
        is_best=best,
    )
    Saver(store, Ranks(), Retention(keep_previous=keep)).save(payload, wait=True)
