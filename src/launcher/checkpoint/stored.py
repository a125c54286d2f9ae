"""An open checkpoint: its tensors and its state."""

import hashlib
import json
from pathlib import Path
from typing import Any, Self

from launcher.checkpoint.manifest import Manifest
from launcher.checkpoint.shards import ShardReader, as_bytes
from launcher.checkpoint.state_tree import decode
from launcher.errors import ConfigError
from launcher.process.files import read_file
from launcher.strategies.weights import MODEL

EVALUATION = "evaluation/"
"""Prefix of weights to evaluate in place of the trained ones (see `hooks.evaluation_weights`)."""
NON_EMA_PREFIXES = (MODEL, "optimizer/", EVALUATION)
"""Prefixes of tensors that are not averages of `hooks.ema`."""


class StoredCheckpoint(ShardReader):
    """The tensors of a checkpoint's shards, its global state (`meta`) and each rank's state.

    Tensors of shards are verified as they are read. The small files are verified by `verify`.

    Raises:
        CorruptCheckpoint: a file has changed since it was written. The methods raise it too.
    """

    def __init__(self, path: Path):
        self.manifest = Manifest.read(path)
        entries = {entry.name: entry for entry in self.manifest.files}
        super().__init__(
            [path / name for name in sorted(entries) if name.startswith("shard-")], path, entries
        )
        self.meta = self._read_tree("state") or {}

    def use_weights(self, which: str | None, key: str = "job.weights") -> Self:
        """Read other weights in place of those with which training continues; return the reader.

        Args:
            which: an average of `hooks.ema`: `ema`, or `ema/0.999` where there are several. None:
                the weights of `EVALUATION`, if there are any.
            key: the name of this choice, for messages.
        """
        self._replace_weights(EVALUATION)
        if which is None:
            return self
        averages = sorted(
            {
                "/".join(name.split("/", 2)[:2])
                for name in self.names()
                if not name.startswith(NON_EMA_PREFIXES)
            }
        )
        chosen = [
            average for average in averages if average == which or average.startswith(f"{which}/")
        ]
        if not chosen:
            has = (
                f"it has {', '.join(averages)}" if averages else "it was trained without hooks.ema"
            )
            raise ConfigError(f"{key}={which}: {self.path} has no such weights; {has}.")
        if len(chosen) > 1:
            raise ConfigError(f"{key}={which}: there are {', '.join(chosen)}; name one of them.")
        self._replace_weights(f"{chosen[0]}/")
        return self

    def _replace_weights(self, prefix: str) -> None:
        for name in [name for name in self.names() if name.startswith(prefix)]:
            self._shards[MODEL + name.removeprefix(prefix)] = self._shards.pop(name)

    def rank_state(self, rank: int) -> dict[str, Any] | None:
        """Return the state of one rank, or None if it was saved with fewer ranks."""
        state: dict[str, Any] | None = self._read_tree(f"rank-{rank:05d}")
        return state

    def _read_tree(self, name: str) -> Any:
        # A copy over another save may leave files of the other save.
        listed = {entry.name for entry in self.manifest.files}
        if f"{name}.json" not in listed:
            return None
        tensors = ShardReader(
            [self.path / file for file in (f"{name}.safetensors",) if file in listed]
        )
        data = json.loads(read_file(self.path / f"{name}.json", follow=True))
        return decode(data, {key: tensors.read(key) for key in tensors.names()})


def weights_digest(path: Path) -> str:
    """Return a SHA-256 over the model's tensors: name, dtype, shape and bytes, by name.

    Equal weights have equal digests, however they were sharded or saved.
    """
    return digest_weights(StoredCheckpoint(path))


def digest_weights(weights: ShardReader) -> str:
    """Return the digest of the tensors of a checkpoint's model, or of a file of weights."""
    names = weights.names()
    digest = hashlib.sha256()
    for name in sorted([name for name in names if name.startswith(MODEL)] or names):
        tensor = weights.read(name)
        digest.update(f"{name.removeprefix(MODEL)} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(as_bytes(tensor))
    return digest.hexdigest()
