"""Write the weights of a checkpoint for other programs, as `export/model.safetensors`."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from launcher.checkpoint.shards import DTYPES as FILE_DTYPES
from launcher.checkpoint.shards import ShardReader, write_tensors
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.config.compose.resolve import as_yaml
from launcher.config.construct import target_object
from launcher.config.run_config import read_tree, resolve_node
from launcher.config.tree import Node, without
from launcher.errors import ConfigError
from launcher.models.base import Model
from launcher.optim.precision import DTYPES
from launcher.process.files import fsync_file, fsync_folder, replace_file, replacing
from launcher.process.plural import plural
from launcher.rundir.folder import RunFolder
from launcher.rundir.signing import is_own_text, sign_text
from launcher.strategies.base import Tensors
from launcher.strategies.weights import EXTRA, MODEL, TIED

logger = logging.getLogger("launcher")

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Export:
    """Exports the weights of a checkpoint. `key` is the group of the settings, for messages."""

    key: str
    weights: str | None = None
    dtype: Literal["fp32", "bf16", "fp16"] | None = None
    max_shard_size: str = "5GB"

    def write(self, folder: RunFolder, checkpoint: Path, text: str) -> tuple[int, Path]:
        """Write the full tensors by name, however they were sharded, and a configuration.

        Args:
            folder: of the run that gets the export.
            checkpoint: the folder of a checkpoint.
            text: its configuration, which is written next to the tensors.
        Returns:
            The step, and the file, or the folder of several files.
        """
        stored = StoredCheckpoint(checkpoint)
        tensors = self._tensors(stored)
        with folder.explain_write_errors():
            folder.export.mkdir(exist_ok=True)
            config = read_tree(text)
            settings = resolve_node(config, "model")
            extra = stored.meta.get(EXTRA, {})
            tied = stored.meta.get(TIED, {})
            target, written = write_model(
                folder.export, settings, tensors, extra, self.max_shard_size, tied
            )
            if written != settings:
                stored_model = config["model"]
                model = {
                    key: stored_model[key] if value == settings.get(key) else value
                    for key, value in written.items()
                }
                is_own = is_own_text(text)
                text = as_yaml({**config, "model": model})
                text = sign_text(text) if is_own else text
            replace_file(folder.export / "config.yaml", text.encode())
        files = [target] if target.is_file() else sorted(target.glob("model*.safetensors"))
        count = len(ShardReader(files).names())
        logger.info("%s: %s of step %d.", target, plural(count, "tensor"), stored.manifest.step)
        return stored.manifest.step, target

    def _tensors(self, stored: StoredCheckpoint) -> Tensors:
        dtypes = {name: stored.dtype(name) for name in stored.names()}
        stored.use_weights(self.weights, f"{self.key}.weights")
        names = [name for name in stored.names() if name.startswith(MODEL)]
        if not names:
            raise ConfigError(
                f"{self.key}.checkpoint: {stored.path} holds no exportable weights"
                f" (format {stored.manifest.checkpoint_format})."
            )
        tensors = {name.removeprefix(MODEL): stored.read(name).to(dtypes[name]) for name in names}
        if self.dtype is None:
            return tensors
        dtype = DTYPES[self.dtype]
        return {k: t.to(dtype) if t.is_floating_point() else t for k, t in tensors.items()}


def write_model(
    folder: Path,
    model: Any,
    tensors: dict[str, Any],
    extra: Mapping[str, object] | None = None,
    max_shard_size: str = "5GB",
    tied: Mapping[str, str] | None = None,
) -> tuple[Path, Any]:
    """Write the weights, or let a `Model` with `write_export` write its own files.

    The file of another model has each name of its `state_dict()`, for `load_state_dict`.

    Args:
        folder: where the files are written.
        model: the node `model` of the configuration, resolved.
        tensors: the full tensors by name.
        extra: the entries of its `state_dict()` that are not tensors.
        max_shard_size: the largest size of a file.
        tied: see `launcher.strategies.weights.names_of_tied`.
    Returns:
        The file, or the folder of several files; and the node `model` that loads the written
        weights.
    """
    write = _own_writer(model)
    target = folder / WEIGHTS
    if write is None:
        _check_dtypes(tensors)
        copies = {name: tensors[source] for name, source in (tied or {}).items()}
        with replacing(target) as temporary:
            write_tensors(temporary, tensors | copies)
        return target, model
    settings = without(model, "_target_")
    with TemporaryDirectory(prefix=".export-", dir=folder.parent) as temporary_folder:
        settings = write(settings, tensors, extra or {}, Path(temporary_folder), max_shard_size)
        _move(Path(temporary_folder), folder)
    return target if target.exists() else folder, {"_target_": model["_target_"], **settings}


def _own_writer(model: Node) -> Callable[..., dict[str, Any]] | None:
    """Return `write_export` of a class that derives from `Model` and has it."""
    try:
        cls = target_object(str(model.get("_target_")))
    except (ImportError, ValueError):
        # The class is not installed here, but its weights can still be written.
        return None
    is_model = isinstance(cls, type) and issubclass(cls, Model)
    return getattr(cls, "write_export", None) if is_model else None


def _check_dtypes(tensors: Tensors) -> None:
    """Reject dtypes that other programs cannot read from a safetensors file."""
    for name, tensor in tensors.items():
        if tensor.dtype not in FILE_DTYPES:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise ConfigError(
                f"export: the tensor {name} is {dtype}, which a safetensors file does not hold;"
                " keep it in the model as another dtype."
            )


def _move(source: Path, folder: Path) -> None:
    """Move the files of an export durably into a folder, in place of an earlier export."""
    files = sorted(path for path in source.rglob("*") if path.is_file())
    (probe := source / ".mode").touch()
    for file in files:
        # Safetensors makes files that only their owner can read.
        file.chmod(probe.stat().st_mode)
        fsync_file(file)
        destination = folder / file.relative_to(source)
        destination.parent.mkdir(parents=True, exist_ok=True)
        file.replace(destination)
    names = {file.name for file in files}
    for old in [*folder.glob("model*.safetensors"), *folder.glob("model.safetensors.index.json")]:
        # Shards of an earlier export would be read with the new ones.
        if old.name not in names:
            old.unlink()
    fsync_folder(folder)
