"""The loader that models in MLflow name. Its name stays, since artifacts store it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from launcher.models.declared import declared_method
from launcher.models.supervised import Supervised
from launcher.resume.trained_model import load_model


class Predictor:
    """Model that `mlflow.pyfunc.load_model` wraps."""

    def __init__(self, model: nn.Module):
        self.model = model
        inner: Any = model.module if isinstance(model, Supervised) else model
        self._scores: Callable[[torch.Tensor], torch.Tensor] = (
            declared_method(model, "logits") or inner
        )
        self._dtype = next(
            (p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32
        )

    @torch.inference_mode()
    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> np.ndarray:
        """Return the scores, before softmax or sigmoid: [B, num_classes] or [B, T, vocab_size].

        Args:
            model_input: an array, or a DataFrame of numbers: features [B, num_features], or tokens
                [B, T].
            params: part of MLflow's interface, which is ignored.
        """
        inputs = torch.as_tensor(np.asarray(model_input))
        if inputs.is_floating_point():
            inputs = inputs.to(self._dtype)
        scores: np.ndarray = self._scores(inputs).float().numpy()
        return scores


def _load_pyfunc(path: str) -> Predictor:
    """Called by MLflow, with the folder of an artifact that `tracker=mlflow` has sent."""
    # The artifact that MLflow loads names its own loader, and has code of its own.
    return Predictor(load_model(path, trust=True))
