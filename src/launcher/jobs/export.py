"""job=export: a run's weights for others, as `export/model.safetensors`."""

from typing import Any, Literal

from omegaconf import DictConfig

from launcher.checkpoint.shards import write_tensors
from launcher.checkpoint.stored import MODEL, StoredCheckpoint
from launcher.errors import ConfigError
from launcher.jobs.evaluate import find_checkpoint
from launcher.run.files import replace_file, replacing
from launcher.run.folder import RunFolder
from launcher.run.logs import setup_logging
from launcher.run.ranks import Ranks
from launcher.train.build import logger, resolved_yaml

DTYPE_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class ExportJob:
    """Writes whole tensors by name, however they were sharded, with the configuration beside.

    Args:
        checkpoint: latest, best, or the folder of one.
        dtype: convert floating-point tensors; None: as they are.
    """

    def __init__(self, checkpoint: str = "latest", dtype: Literal["fp32", "bf16", "fp16"] | None = None):
        self.checkpoint, self.dtype = checkpoint, dtype

    def run(self, config: DictConfig) -> dict[str, Any]:
        """
        Raises:
            ConfigError: the run has no such checkpoint, or one that holds no tensors of its own.
        """
        import torch

        ranks = Ranks.from_env()
        setup_logging(None, ranks.rank)
        if not ranks.is_main:  # one process has all to do
            return {}
        folder = RunFolder(config.run.dir)
        path = find_checkpoint(folder, self.checkpoint)
        stored = StoredCheckpoint(path)
        names = [name for name in stored.names() if name.startswith(MODEL)]
        if not names:
            raise ConfigError(
                f"job.checkpoint={self.checkpoint}: {path} holds no exportable weights "
                f"(format {stored.manifest.checkpoint_format})."
            )
        tensors = {name.removeprefix(MODEL): stored.read(name) for name in names}
        if self.dtype is not None:
            dtype = getattr(torch, DTYPE_NAMES[self.dtype])
            tensors = {k: t.to(dtype) if t.is_floating_point() else t for k, t in tensors.items()}
        folder.export.mkdir(exist_ok=True)
        target = folder.export / "model.safetensors"
        with replacing(target) as temporary:
            write_tensors(temporary, tensors)
        replace_file(folder.export / "config.yaml", resolved_yaml(config).encode())
        logger.info("%s: %d tensors of step %d.", target, len(tensors), stored.manifest.step)
        return {"step": stored.manifest.step, "path": str(target)}
