"""Load a trained model in your own program, and in MLflow."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf
from torch import nn

from launcher.checkpoint.find import find_checkpoint
from launcher.checkpoint.manifest import NAME as MANIFEST
from launcher.checkpoint.manifest import CorruptCheckpoint
from launcher.checkpoint.shards import ShardReader
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.config.session import first_line
from launcher.errors import ConfigError, TrainingError
from launcher.hooks.init_from import Renamed
from launcher.run.files import expanded
from launcher.run.folder import RunFolder
from launcher.strategies.weights import load_weights, model_tensors

EXPORTED, SHARDS = "model.safetensors", "model-*-of-*.safetensors"


def load_model(folder: str | Path, checkpoint: str | int = "latest", weights: str | None = None) -> nn.Module:
    """The model of a run, a checkpoint or an export: with its weights, on the CPU, in evaluation mode.

    `config.yaml` in the folder names the class and the arguments. Building the model runs the code of that class, so
    load only what you trust.

    Args:
        folder: of a run, of a checkpoint, or `export` of a run.
        checkpoint: if the folder is a run's: latest, best or a step.
        weights: an average of `hooks.ema`: `ema`, or `ema/0.999` if there are several. None: the weights themselves.
            Not for an export, which has only one kind of weights.
    Raises:
        ConfigError: there is no such checkpoint, it is damaged, or its weights do not fit the class.
    """
    path = expanded(folder)
    exported = [path / EXPORTED] if (path / EXPORTED).exists() else sorted(path.glob(SHARDS))
    is_export, is_checkpoint = bool(exported), (path / MANIFEST).exists()
    if is_export and weights is not None:
        raise ConfigError(f"weights={weights}: {path} is an export; set job.weights when exporting.")
    if not is_export:
        which = path if is_checkpoint else checkpoint
        path = find_checkpoint(RunFolder(path).checkpoints, which, "checkpoint", hashes=False)
    try:
        saved = ShardReader(exported) if is_export else _opened(path, weights)
        model = _build(path / "config.yaml")
        load_weights(model, Renamed(saved, model_tensors(model)) if is_export else saved)
    except (CorruptCheckpoint, TrainingError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return model.eval()


def _opened(checkpoint: Path, weights: str | None) -> StoredCheckpoint:
    stored = StoredCheckpoint(checkpoint)
    if weights is not None:
        stored.use_average(weights)
    return stored


def _build(file: Path) -> nn.Module:
    if not file.exists():  # the checkpoint of a `BaseTrainer` without a configuration
        raise ConfigError(f"{file}: does not exist; build the model yourself, and load the tensors into it.")
    config: Any = OmegaConf.load(file)
    target = OmegaConf.select(config, "model._target_")
    try:
        is_module = target is not None and issubclass(get_class(target), nn.Module)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{file}: model._target_={target}: {first_line(error)}") from error
    if not is_module:
        raise ConfigError(f"{file}: model._target_={target}: must name a torch.nn.Module.")
    model: nn.Module = instantiate(config.model)
    return model


class Predictor:
    """What `mlflow.pyfunc.load_model` wraps."""

    def __init__(self, model: nn.Module):
        self.model = model
        self._scores: Callable[[torch.Tensor], torch.Tensor] = getattr(model, "logits", getattr(model, "module", model))
        self._dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)

    @torch.inference_mode()
    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> np.ndarray:
        """
        Args:
            model_input: an array, or a DataFrame of numbers: features [B, num_features], or tokens [B, T].
            params: part of MLflow's interface; ignored.
        Returns:
            The model's scores before softmax or sigmoid, float32: [B, num_classes] or [B, T, vocab_size].
        """
        inputs = torch.as_tensor(np.asarray(model_input))
        if inputs.is_floating_point():
            inputs = inputs.to(self._dtype)
        scores: np.ndarray = self._scores(inputs).float().numpy()
        return scores


def _load_pyfunc(path: str) -> Predictor:
    """Called by MLflow, with the folder of an artifact that `tracker=mlflow` has sent."""
    return Predictor(load_model(path))
