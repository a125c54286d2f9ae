"""Start a run from the weights of another, at step 0."""

from pathlib import Path
from typing import Any

from launcher.checkpoint.manifest import verify
from launcher.checkpoint.shards import ShardReader
from launcher.checkpoint.store import BEST, LATEST, CheckpointStore
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.errors import ConfigError
from launcher.hooks.base import BaseHook


class InitFromHook(BaseHook):
    """Loads model weights before anything else looks at the run; a checkpoint of the run itself replaces them.

    Args:
        source: a safetensors file, the folder of a checkpoint, of a run (its best, else its latest checkpoint) or of a
            Hugging Face model (its safetensors files), or a run's id.
        outputs: where runs are looked for by id.
        strict: every tensor has to match; else what does not is reported.
    """

    def __init__(self, source: Path, outputs: Path = Path("outputs"), strict: bool = True):
        self.source, self.outputs, self.strict = source, outputs, strict

    def on_start(self, trainer: Any) -> None:
        reader = open_weights(self.source, self.outputs)
        for problem in trainer.strategy.load_weights(reader, self.strict):
            trainer.logger.warning("run.init_from: %s", problem)
        trainer.logger.info("Weights from %s.", reader.path)


def open_weights(source: Path, outputs: Path = Path("outputs")) -> ShardReader:
    """
    Raises:
        ConfigError: there are no weights there.
    """
    if source.is_file() and source.suffix == ".safetensors":
        return ShardReader([source])
    folders = [source, *outputs.glob(f"*/{source}")] if len(source.parts) == 1 else [source]
    for folder in folders:
        if (folder / "manifest.json").exists():
            verify(folder)
            return StoredCheckpoint(folder)
        store = CheckpointStore(folder / "checkpoints")
        step = store.linked(BEST) or store.linked(LATEST)
        if step is not None:
            verify(store.path(step))
            return StoredCheckpoint(store.path(step))
        if folder.is_dir() and (files := sorted(folder.glob("*.safetensors"))):
            return ShardReader(files)
    raise ConfigError(
        f"run.init_from={source}: no weights there; give a .safetensors file, the folder of a checkpoint, a run or a "
        "Hugging Face model, or the id of a run."
    )
