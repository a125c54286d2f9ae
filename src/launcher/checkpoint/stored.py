"""A checkpoint on disk, opened."""

import hashlib
import json
from pathlib import Path
from typing import Any

from launcher.checkpoint.manifest import Manifest
from launcher.checkpoint.shards import ShardReader, as_bytes
from launcher.checkpoint.tree import decode

MODEL = "model/"


class StoredCheckpoint(ShardReader):
    """The tensors of a checkpoint's shards, its global state (`meta`) and the state of each rank.

    Tensors of shards are verified as they are read. The small files are verified by `verify`.

    Raises:
        CorruptCheckpoint: a file is not as it was written. The methods raise it too.
    """

    def __init__(self, path: Path):
        self.manifest = Manifest.read(path)
        entries = {entry.name: entry for entry in self.manifest.files}
        super().__init__(sorted(path.glob("shard-*.safetensors")), path=path, entries=entries)
        self.meta = _read_tree(path / "state.json") or {}

    def rank_state(self, rank: int) -> dict[str, Any] | None:
        """None: there was no such rank when it was saved."""
        return _read_tree(self.path / f"rank-{rank:05d}.json")


def _read_tree(file: Path) -> Any:
    if not file.exists():
        return None
    beside = file.with_suffix(".safetensors")
    tensors = ShardReader([beside] if beside.exists() else [])
    return decode(json.loads(file.read_bytes()), {name: tensors.read(name) for name in tensors.names()})


def weights_digest(path: Path) -> str:
    """SHA-256 over the model's tensors: name, dtype, shape and bytes of each, by name. However they were sharded or
    saved, equal weights have equal digests."""
    stored = StoredCheckpoint(path)
    digest = hashlib.sha256()
    for name in sorted(name for name in stored.names() if name.startswith(MODEL)):
        tensor = stored.read(name)
        digest.update(f"{name.removeprefix(MODEL)} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(as_bytes(tensor))
    return digest.hexdigest()
