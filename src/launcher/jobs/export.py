"""job=export, which writes a run's weights for other programs, as `export/model.safetensors`."""

import re
from dataclasses import dataclass
from typing import Literal

from launcher.checkpoint.export_weights import Export
from launcher.checkpoint.find_checkpoint import find_checkpoint
from launcher.checkpoint.push import check_repository, push
from launcher.config.run_config import RunConfig
from launcher.errors import ConfigError
from launcher.jobs.stored_config import config_for
from launcher.process.ranks import Ranks
from launcher.rundir.logs import setup_logging
from launcher.rundir.signing import sign_text

SIZE = re.compile(r"\d+(\.\d+)? ?[KMGT]i?B", re.IGNORECASE)


@dataclass
class ExportJob:
    """Writes full tensors by name, however they were sharded, and the checkpoint's configuration.

    Args:
        checkpoint, weights, trust: see `launcher.jobs.stored_model.open_model`.
        dtype: convert floating-point tensors. Default None: they are not converted.
        max_shard_size: a larger Hugging Face model is written in several files.
        push: a repository of the Hugging Face Hub, owner/name, that gets the export.
    """

    needs_optimizer = False
    one_process = True
    reads = ()
    code_keys = ("trust",)

    checkpoint: str | int = "latest"
    weights: str | None = None
    dtype: Literal["fp32", "bf16", "fp16"] | None = None
    max_shard_size: str = "5GB"
    trust: bool = False
    push: str | None = None

    def __post_init__(self) -> None:
        if not SIZE.fullmatch(self.max_shard_size):
            raise ConfigError(
                f"job.max_shard_size={self.max_shard_size}: should be a size; e.g. 5GB."
            )
        check_repository("job.push", self.push)

    def run(self, config: RunConfig) -> dict[str, object]:
        ranks = Ranks.from_env()
        setup_logging(None, ranks.rank)
        # Rank 0 alone exports.
        if not ranks.is_main:
            return {}
        folder = config.folder
        path = find_checkpoint(folder.checkpoints, self.checkpoint, "job.checkpoint")
        # Rejects a command line that contradicts it.
        config_for(config, path, self.trust, ["model"])
        stored = path / "config.yaml"
        has_config = stored.exists()
        text = stored.read_text() if has_config else sign_text(config.stored_yaml)
        export = Export("job", self.weights, self.dtype, self.max_shard_size)
        step, target = export.write(folder, path, text)
        if self.push is not None:
            push("job.push", self.push, folder, step)
        return {"step": step, "path": str(target)}
