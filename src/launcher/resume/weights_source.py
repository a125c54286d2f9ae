"""Weights of others for a start at step 0: where they are, and under what names."""

from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path

import torch

from launcher.checkpoint.find_checkpoint import checkpoint_path, find_checkpoint
from launcher.checkpoint.manifest import CorruptCheckpoint
from launcher.checkpoint.shards import ShardReader
from launcher.checkpoint.store import BEST, LATEST
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.config.schema.checks import no_weights
from launcher.errors import ConfigError
from launcher.rundir.folder import weights_source
from launcher.strategies.weights import MODEL


def fit_names(reader: ShardReader, names: Iterable[str]) -> ShardReader:
    """Return stored weights under the model's own names, of which tied tensors have several.

    Compared with the model's names, names in a file may lack a prefix or have an extra one
    (`model.` of a wrapper, `transformer.` of a Hugging Face model's body, `module.` of
    `model=supervised`). The prefix that makes most names fit is added or removed. A prefix that all
    names of a file have may be replaced by a prefix that all names of the model have.
    """
    wanted = set(names)
    stored = reader.names()
    if any(name.startswith(MODEL) for name in stored):
        # A checkpoint is read without its optimizer.
        stored = [name for name in stored if name.startswith(MODEL)]
    plain = {name.removeprefix(MODEL): name for name in stored}
    ways = [
        ("", ""),
        *(("", more) for more in _prefixes(wanted)),
        *((less, "") for less in _prefixes(plain)),
        *product(_common(plain), _common(wanted)),
    ]
    fits = {way: len(wanted & set(_rename(plain, *way))) for way in ways}
    # In a tie the first one is used, which changes least.
    best = max(ways, key=lambda way: fits[way])
    if not fits[best]:
        some = ", ".join(sorted(plain)[:3])
        raise ConfigError(
            f"run.init_from={reader.path}: none of its weights ({some}, ...) is in the model."
        )
    return reader.under_names(_rename(plain, *best))


def differences(weights: ShardReader, tied: Mapping[str, str]) -> list[str]:
    """Return a message for each two stored tensors that differ but the model ties."""
    stored = set(weights.names())
    return [
        f"{other}: the model ties it to {source}, and they differ in the file"
        for other, source in tied.items()
        if {other, source} <= stored and not torch.equal(weights.read(other), weights.read(source))
    ]


def _prefixes(names: Iterable[str]) -> list[str]:
    """Return the prefixes of names in whole parts, such as `model.` and `model.transformer.`."""
    prefixes = {
        ".".join(parts[:depth]) + "."
        for parts in (name.split(".") for name in names)
        for depth in (1, 2, 3)
        if depth < len(parts)
    }
    return sorted(prefixes, key=len)


def _common(names: Iterable[str]) -> list[str]:
    names = list(names)
    return [p for p in _prefixes(names) if all(name.startswith(p) for name in names)]


def _rename(plain: dict[str, str], less: str, more: str) -> dict[str, str]:
    return {more + name.removeprefix(less): full for name, full in plain.items()}


def open_weights(source: Path, outputs: Path = Path("outputs")) -> ShardReader:
    issue = no_weights(source)
    if issue:
        raise ConfigError(f"run.init_from={source}: {issue}")
    if source.is_file():
        return _read(source, [source])
    folder = weights_source(outputs, str(source)) or source
    checkpoint = _checkpoint(folder, source)
    if checkpoint:
        return StoredCheckpoint(checkpoint).use_weights(None)
    files = _model_files(folder)
    if files:
        return _read(source, files)
    raise ConfigError(
        f"run.init_from={source}: has no weights; use a .safetensors file, the folder of a"
        " checkpoint, a run or a Hugging Face model, or the id of a run."
    )


def _checkpoint(folder: Path, source: Path) -> Path | None:
    """Return the folder if it is a checkpoint, else a run's best or latest checkpoint."""
    if (folder / "manifest.json").exists():
        return find_checkpoint(folder.parent, folder, "run.init_from")
    root = folder / "checkpoints"
    for which in (BEST, LATEST):
        if checkpoint_path(root, which) is not None:
            return find_checkpoint(root, which, f"run.init_from={source}: checkpoint")
    return None


def _read(source: Path, files: list[Path]) -> ShardReader:
    try:
        return ShardReader(files)
    except OSError as error:
        problem = f"{Path(error.filename).name} cannot be read"
    except CorruptCheckpoint as error:
        problem = str(error)
    raise ConfigError(f"run.init_from={source}: {problem}; copy or download it again.")


def _model_files(folder: Path) -> list[Path]:
    """List the safetensors files of a Hugging Face folder: the model's own, or else all."""
    for pattern in ("model.safetensors", "model-*.safetensors", "*.safetensors"):
        files = sorted(folder.glob(pattern))
        if files:
            return files
    return []
