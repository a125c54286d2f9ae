"""Computes metrics of an evaluation, from torchmetrics or with the same methods."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch

from launcher.errors import ConfigError, needing
from launcher.hooks.view import Records
from launcher.models.base import IGNORED
from launcher.models.output import OUTPUTS, name_issue
from launcher.process import ranks

MAX_TEXTS = 1000
"""A table with more values is drawn without their numbers, which would take seconds."""


class Metrics:
    """Metrics by name, which combine the states of the ranks themselves, as in torchmetrics."""

    def __init__(self, metrics: Mapping[str, Any]):
        self.metrics = dict(metrics)
        for name, metric in self.metrics.items():
            issue = name_issue(name)
            if issue:
                raise ConfigError(f"hooks.evaluation.metrics.{name}: {issue}.")
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

    def update(self, model: torch.nn.Module, records: Records) -> None:
        if not self.metrics:
            return
        if not all(isinstance(records.get(name), torch.Tensor) for name in OUTPUTS):
            raise ConfigError(
                f"hooks.evaluation.metrics: {type(model).__name__} returns no `logits` and"
                " `targets` in evaluation; add these two tensors to the records of its forward."
            )
        predictions, targets = scores(records["logits"], records["targets"])
        if not targets.numel():
            return
        for name, metric in self.metrics.items():
            try:
                metric.update(predictions, targets)
            except (ValueError, RuntimeError, TypeError, IndexError) as error:
                raise ConfigError(
                    f"hooks.evaluation.metrics.{name}: {type(metric).__name__} does not take"
                    f" predictions of shape {tuple(predictions.shape)} and targets of shape"
                    f" {tuple(targets.shape)}: {' '.join(str(error).split()).rstrip('.')}."
                ) from error

    def compute(self) -> Records:
        """Return numbers, dicts of numbers, and a `Matrix` for each value with two dimensions."""
        if ranks.world_size() > 1:
            self._check_exchange()
        return {
            name: _values(name, metric, metric.compute()) for name, metric in self.metrics.items()
        }

    def _check_exchange(self) -> None:
        """Reject a metric of which the ranks would wait for each other without end.

        Torchmetrics gathers each tensor of a list state without reduction by itself, and a rank may
        have a batch more than another.
        """
        of_ranks = ranks.all_gather(
            {name: count_gathers(metric) for name, metric in self.metrics.items()}
        )
        for name, metric in self.metrics.items():
            if len({counts[name] for counts in of_ranks}) > 1:
                raise ConfigError(
                    f"hooks.evaluation.metrics.{name}: {type(metric).__name__} keeps a list of the"
                    " batches without a reduction, and the ranks have different numbers of"
                    " batches; give its add_state(...) dist_reduce_fx='cat', choose a"
                    " data.val_batch_size that gives each rank as many batches, or evaluate it on"
                    " one rank."
                )


def count_gathers(metric: Any) -> int:
    """Return how many tensors a metric of torchmetrics would gather, tried without other ranks."""
    counted: list[torch.Tensor] = []

    def gather(tensor: torch.Tensor, group: object = None) -> list[torch.Tensor]:
        counted.append(tensor)
        return [tensor]

    parts: Iterable[Any] = metric.modules() if isinstance(metric, torch.nn.Module) else ()
    for part in parts:
        if hasattr(part, "sync_context"):
            with part.sync_context(dist_sync_fn=gather, distributed_available=lambda: True):
                pass
    return len(counted)


@dataclass(frozen=True)
class Matrix:
    """A metric's value with two dimensions, such as a confusion matrix, on the host."""

    name: str
    metric: Any
    values: torch.Tensor

    def draw(self) -> np.ndarray:
        """Return the picture [H, W, 3] that the metric's `plot` makes of the value."""
        problem = f"hooks.evaluation.metrics.{self.name}: {type(self.metric).__name__}"
        with needing(
            f"{problem} has a value with two dimensions, whose picture needs the package"
            " matplotlib; pip install 'torch-launcher[pictures]'."
        ):
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        side = min(max(5.0, 0.6 * max(self.values.shape)), 20.0)
        canvas: Any = FigureCanvasAgg(Figure(figsize=(side, side), layout="constrained"))
        try:
            plot = self.metric.plot
            is_large = self.values.numel() > MAX_TEXTS and "add_text" in signature(plot).parameters
            options = {"add_text": False} if is_large else {}
            plot(self.values, ax=canvas.figure.add_subplot(), **options)
        except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{problem} has a value with two dimensions {tuple(self.values.shape)}, which its"
                " plot(value, ax=...) does not draw; use a metric with numbers, or one that draws"
                " it, such as torchmetrics.ConfusionMatrix."
            ) from error
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def split_tables(records: Mapping[str, object]) -> tuple[Records, Records]:
    numbers: Records = {}
    tables: Records = {}
    for key, value in records.items():
        if isinstance(value, Mapping):
            for target, part in zip((numbers, tables), split_tables(value), strict=True):
                if part:
                    target[key] = part
        else:
            (tables if isinstance(value, Matrix) else numbers)[key] = value
    return numbers, tables


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
    logits = logits.reshape(-1, logits.shape[-1])
    targets = targets.reshape(-1)
    counted = targets != IGNORED
    return logits[counted].float().softmax(-1), targets[counted]


def _values(name: str, metric: object, value: Any) -> object:
    if isinstance(value, Mapping):
        return {str(key): _values(name, metric, item) for key, item in value.items()}
    if not isinstance(value, torch.Tensor):
        return float(value)
    if value.ndim > 2:
        return {str(index): _values(name, metric, item) for index, item in enumerate(value)}
    if value.numel() <= 1:
        return float(value)
    if value.ndim == 2:
        return Matrix(name, metric, value.cpu())
    # Of each class.
    return {str(index): item for index, item in enumerate(value.tolist())}
