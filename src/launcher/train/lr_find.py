"""The learning rate range test (Smith 2017, arXiv:1506.01186): the loss while the rate grows from step to step."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from launcher.data.plain import unchanged
from launcher.errors import TrainingError
from launcher.hooks.base import BaseHook, TrainerView, TrainState
from launcher.run.rng import isolated_rng
from launcher.train.trainer import BaseTrainer

FEWEST = 5
"""A suggestion needs at least this many points."""


@dataclass
class LRFinderResult:
    """The smoothed loss at each rate, and the rate at which it falls fastest."""

    lrs: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    suggested_lr: float | None = None
    stopped: str | None = None
    """Why the test ended before its last rate."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_lr(
    trainer: BaseTrainer,
    start_lr: float = 1e-7,
    end_lr: float = 1.0,
    num_iterations: int = 100,
    smoothing_factor: float = 0.05,
    divergence_threshold: float = 4.0,
) -> LRFinderResult:
    """Train with rates that grow from `start_lr` to `end_lr` by the same factor each step, and suggest one.

    Afterwards weights, optimizer, data position, random state and the model's mode are restored. The trainer's hooks
    and schedule are not used. If parameter groups have different rates, their ratios stay.

    Args:
        smoothing_factor: weight of each new loss in the moving average of losses; 1: no smoothing.
        divergence_threshold: stop once the average is more than this many times the least so far.
    Raises:
        ValueError: the loader has no batch, or the rates do not grow.
    """
    if not 0 < start_lr < end_lr or num_iterations < 2:
        raise ValueError("find_lr: needs 0 < start_lr < end_lr and at least 2 iterations.")
    if not trainer.is_built:
        trainer.build()
    factor = (end_lr / start_lr) ** (1 / (num_iterations - 1))
    test = _RangeTest(start_lr, factor, smoothing_factor, divergence_threshold)
    with _untouched(trainer):
        trainer.hooks, trainer.lr_scheduler, trainer.state = [test], None, TrainState(num_iterations)
        try:
            trainer.train()
        except TrainingError as error:
            if "its dataset is empty" in str(error):
                raise ValueError(f"find_lr: {error}") from error
            test.result.stopped = test.result.stopped or str(error)
    result = test.result
    is_finite = all(map(math.isfinite, result.losses))
    result.suggested_lr = suggestion(result.lrs, result.losses) if is_finite else None
    return result


class _RangeTest(BaseHook):
    def __init__(self, start_lr: float, factor: float, smoothing: float, threshold: float):
        self.start_lr, self.factor, self.smoothing, self.threshold = start_lr, factor, smoothing, threshold
        self.result = LRFinderResult()
        self._ratios: list[float] = []

    def on_ready(self, trainer: TrainerView) -> None:
        rates = [float(group["lr"]) for group in trainer.optimizer.param_groups]
        self._ratios = [rate / max(rates) if max(rates) > 0 else 1.0 for rate in rates]

    def on_before_step(self, trainer: TrainerView) -> None:
        rate = self.start_lr * self.factor ** (trainer.step - 1)
        self.result.lrs.append(rate)
        for group, ratio in zip(trainer.optimizer.param_groups, self._ratios, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate * ratio)
            else:
                group["lr"] = rate * ratio

    def on_after_step(self, trainer: TrainerView) -> None:
        losses = self.result.losses
        loss = float(torch.stack(trainer.step_info["loss"]).mean())
        losses.append(loss if not losses else self.smoothing * loss + (1 - self.smoothing) * losses[-1])
        if not math.isfinite(losses[-1]):
            self._stop(trainer, f"the loss was {loss}")
        elif losses[-1] > self.threshold * min(losses) and min(losses) > 0:
            self._stop(trainer, f"the loss was more than {self.threshold:g} times the least")

    def _stop(self, trainer: TrainerView, reason: str) -> None:
        self.result.stopped = f"{reason} at lr={self.result.lrs[-1]:.3g}"
        trainer.state.stop(self.result.stopped)


def suggestion(lrs: list[float], losses: list[float]) -> float | None:
    """The rate at which the loss falls fastest before its minimum; None: it does not fall, or too few points."""
    end = int(np.argmin(losses)) + 1 if losses else 0
    if end < FEWEST:
        return None
    slopes = np.gradient(np.asarray(losses[:end]), np.log(lrs[:end]))
    steepest = int(np.argmin(slopes))
    return lrs[steepest] if slopes[steepest] < 0 else None


@contextmanager
def _untouched(trainer: BaseTrainer) -> Iterator[None]:
    """A context that restores the trainer and its parts at its end."""
    tensors = [*trainer.model.parameters(), *trainer.model.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    optimizer = deepcopy(trainer.optimizer.state_dict())
    scaler = deepcopy(trainer.grad_scaler.state_dict())
    data: Any = trainer.data_loader
    modes = [(module, module.training) for module in trainer.model.modules()]
    attributes = dict(vars(trainer))
    try:
        with isolated_rng(), unchanged(data):
            # Both may begin an epoch, and then draw random numbers.
            position = data.state_dict() if hasattr(data, "state_dict") else None
            try:
                yield
            finally:
                if position is not None:
                    data.load_state_dict(position)
    finally:
        vars(trainer).clear()
        vars(trainer).update(attributes)
        trainer._bind_events()
        with torch.no_grad():
            for tensor, values in zip(tensors, before, strict=True):
                tensor.copy_(values)
        trainer.optimizer.state.clear()
        trainer.optimizer.load_state_dict(optimizer)
        if scaler:
            trainer.grad_scaler.load_state_dict(scaler)
        trainer.strategy.zero_grad()
        for module, mode in modes:
            module.training = mode
