"""Checkpoints of a few numbers, for tests of the store."""

import json
from pathlib import Path
from typing import Any

import torch
import xxhash

from launcher.checkpoint.manifest import Manifest
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.saver import Payload, Saver
from launcher.checkpoint.store import CheckpointStore
from launcher.process.ranks import Ranks


def payload(step: int, value: float = 0.0, best_step: int | None = None, size: int = 4) -> Payload:
    notes = {"checkpointing": {"best": {"step": best_step}}}
    hooks = {} if best_step is None else {"CheckpointingHook": notes}
    return Payload(
        step=step,
        manifest=Manifest(step, 1, "none", "sharded"),
        tensors={"model/w": torch.full((size,), value or float(step))},
        rank_state={"rng": torch.arange(3), "hooks": hooks},
        global_state={"step": step},
        is_best=best_step == step,
    )


def save(
    store: CheckpointStore,
    step: int,
    value: float = 0.0,
    best: bool = False,
    keep: int = 9,
    size: int = 4,
) -> None:
    best_step = step if best else store.best() if store.root.is_dir() else None
    saver = Saver(store, Ranks(), Retention(keep_previous=keep))
    saver.save(payload(step, value, best_step, size), wait=True)


ABSENT = object()
"""The value of a key that is removed."""


def change_manifest(folder: Path, **values: Any) -> None:
    """Set keys of a manifest, with the checksum that fits."""
    file = folder / "manifest.json"
    data = json.loads(file.read_bytes()) | values
    data = {key: value for key, value in data.items() if value is not ABSENT and key != "xxh3"}
    data["xxh3"] = xxhash.xxh3_128_hexdigest(json.dumps(data, sort_keys=True).encode())
    file.write_text(json.dumps(data))
