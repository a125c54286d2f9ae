"""Computes metrics of an evaluation, from torchmetrics or with the same methods."""

from collections.abc import Mapping
from typing import Any

import torch

from launcher.errors import ConfigError
from launcher.models.base import IGNORED
from launcher.models.output import OUTPUTS


class Metrics:
    """Metrics by name, which combine the states of the ranks themselves, as in torchmetrics."""

    def __init__(self, metrics: Mapping[str, Any]):
        self.metrics = dict(metrics)
        for name, metric in self.metrics.items():
            if not all(hasattr(metric, method) for method in ("reset", "update", "compute")):
                raise ConfigError(
                    f"hooks.evaluation.metrics.{name}: {type(metric).__name__} is not a metric; use"
                    " one of torchmetrics (pip install 'torch-launcher[metrics]')."
                )

    def reset(self, device: torch.device) -> None:
        for metric in self.metrics.values():
            if hasattr(metric, "to"):
                metric.to(device)
            metric.reset()

    def update(self, model: torch.nn.Module, records: Mapping[str, Any]) -> None:
        if not self.metrics:
            return
        if not all(isinstance(records.get(name), torch.Tensor) for name in OUTPUTS):
            raise ConfigError(
                f"hooks.evaluation.metrics: {type(model).__name__} returns no `logits` and"
                " `targets` in evaluation; add these two tensors to the records of its forward."
            )
        predictions, targets = scores(records["logits"], records["targets"])
        for name, metric in self.metrics.items() if targets.numel() else ():
            try:
                metric.update(predictions, targets)
            except (ValueError, RuntimeError, TypeError, IndexError) as error:
                raise ConfigError(
                    f"hooks.evaluation.metrics.{name}: {type(metric).__name__} does not take"
                    f" predictions of shape {tuple(predictions.shape)} and targets of shape"
                    f" {tuple(targets.shape)}: {' '.join(str(error).split()).rstrip('.')}."
                ) from error

    def compute(self) -> dict[str, object]:
        """Return numbers, and dicts of numbers."""
        return {
            name: _values(f"hooks.evaluation.metrics.{name}", metric.compute())
            for name, metric in self.metrics.items()
        }


def scores(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the arguments of metrics.

    Classification has probabilities [N, classes] and targets [N], without ignored targets (-100).
    Integer targets with the shape of the logits (yes or no) have probabilities of yes. Other
    targets (regression) leave both unchanged. torchmetrics would take logits between 0 and 1 for
    probabilities.
    """
    if targets.is_floating_point():
        return logits.float(), targets
    if logits.shape == targets.shape:
        return logits.float().sigmoid(), targets
    # In torch's order, classes are axis 1.
    if logits.shape[:-1] != targets.shape:
        logits = logits.movedim(1, -1)
    logits, targets = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    counted = targets != IGNORED
    return logits[counted].float().softmax(-1), targets[counted]


def _values(key: str, value: Any) -> object:
    if isinstance(value, Mapping):
        return {str(name): _values(f"{key}.{name}", item) for name, item in value.items()}
    if isinstance(value, torch.Tensor) and value.numel() > 1:
        if value.ndim > 1:
            raise ConfigError(
                f"{key}: its value has the shape {tuple(value.shape)}; use a metric with a number,"
                " or one for each class."
            )
        return {str(index): item for index, item in enumerate(value.tolist())}
    return float(value)
