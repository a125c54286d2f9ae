"""The learning rate range test (Smith 2017, arXiv:1506.01186): the loss while the rate grows."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge

from launcher.config.run_config import RunConfig
from launcher.data.user_dataloader import keep_loader_state
from launcher.errors import ConfigError, TrainingError
from launcher.hooks.base import BaseHook
from launcher.hooks.view import TrainerView, TrainState
from launcher.jobs.dry_run import trial_trainer
from launcher.models.modes import modes_of, set_modes
from launcher.optim.schedulers import set_rate
from launcher.process import ranks
from launcher.process.files import replace_file
from launcher.process.plural import plural
from launcher.process.rng import isolated_rng
from launcher.rundir.logs import setup_logging
from launcher.train.build import logger
from launcher.train.trainer import BaseTrainer
from launcher.types import NonEmptyText, PositiveFloat

MIN_POINTS = 5
"""Minimum number of points for a suggestion."""


@dataclass
class LRFinderResult:
    """The smoothed loss at each rate, and the rate at which it falls fastest."""

    lrs: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    suggested_lr: float | None = None
    stopped: str | None = None
    """Why the test ended before its last rate."""

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def find_lr(
    trainer: BaseTrainer,
    start_lr: float = 1e-7,
    end_lr: float = 1.0,
    num_iterations: int = 100,
    smoothing_factor: float = 0.05,
    divergence_threshold: float = 4.0,
) -> LRFinderResult:
    """Train with rates that grow by one factor from `start_lr` to `end_lr`, and suggest one.

    Afterwards weights, optimizer, data position, random state and the model's mode are restored.
    The trainer's hooks and schedule are not used. If parameter groups have different rates, their
    ratios stay.

    Args:
        trainer: the trainer, before or between its steps.
        start_lr: the first rate.
        end_lr: the last rate.
        num_iterations: the number of steps.
        smoothing_factor: weight of each new loss in the moving average of losses. With 1, no
            smoothing.
        divergence_threshold: stop once the average is more than this many times its minimum so far.
    Raises:
        ValueError: the loader has no batch, or the rates do not grow.
    """
    if not 0 < start_lr < end_lr or num_iterations < 2:
        raise ValueError("find_lr: needs 0 < start_lr < end_lr and at least 2 iterations.")
    if not trainer.is_built:
        trainer.build()
    test = _RangeTest(start_lr, end_lr, num_iterations, smoothing_factor, divergence_threshold)
    with _keep_trainer(trainer):
        return test.measure(trainer)


class _RangeTest(BaseHook):
    def __init__(self, start: float, end: float, count: int, smoothing: float, threshold: float):
        self.start = start
        self.count = count
        self.factor = (end / start) ** (1 / (count - 1))
        self.smoothing = smoothing
        self.threshold = threshold
        self.result = LRFinderResult()
        self._ratios: list[float] = []

    def measure(self, trainer: BaseTrainer) -> LRFinderResult:
        if not trainer.strategy.needs_graph:
            raise ConfigError(
                "job=lr_find: the model steps its own optimizers (owns_optimizers), which have no"
                " common rate; compare values of its own keys in a sweep."
            )
        trainer.hooks = [self]
        trainer.lr_scheduler = None
        trainer.state = TrainState(self.count)
        result = self.result
        try:
            trainer.train()
        except TrainingError as error:
            if "its dataset is empty" in str(error):
                raise ValueError(f"find_lr: {error}") from error
            result.stopped = result.stopped or str(error)
        if all(map(math.isfinite, result.losses)):
            result.suggested_lr = suggestion(result.lrs, result.losses)
        return result

    def on_ready(self, trainer: TrainerView) -> None:
        rates = [float(group["lr"]) for group in trainer.optimizer.param_groups]
        self._ratios = [rate / max(rates) if max(rates) > 0 else 1.0 for rate in rates]

    def on_before_step(self, trainer: TrainerView) -> None:
        rate = self.start * self.factor ** (trainer.step - 1)
        self.result.lrs.append(rate)
        for group, ratio in zip(trainer.optimizer.param_groups, self._ratios, strict=True):
            set_rate(group, rate * ratio)

    def on_after_step(self, trainer: TrainerView) -> None:
        losses = self.result.losses
        mean = torch.stack(trainer.step_info["loss"]).mean()
        # All ranks stop at the same step.
        loss = float(ranks.sum_over_ranks(mean)) / ranks.world_size()
        if losses:
            loss = self.smoothing * loss + (1 - self.smoothing) * losses[-1]
        losses.append(loss)
        if not math.isfinite(losses[-1]):
            self._stop(trainer, f"the loss was {loss}")
        elif losses[-1] > self.threshold * min(losses) and min(losses) > 0:
            self._stop(trainer, f"the loss was more than {self.threshold:g} times the least")

    def _stop(self, trainer: TrainerView, reason: str) -> None:
        self.result.stopped = f"{reason} at lr={self.result.lrs[-1]:.3g}"
        trainer.state.stop(self.result.stopped)


def suggestion(lrs: list[float], losses: list[float]) -> float | None:
    """Return the rate at which the loss falls fastest before its minimum, if it falls."""
    end = int(np.argmin(losses)) + 1 if losses else 0
    if end < MIN_POINTS:
        return None
    slopes = np.gradient(np.asarray(losses[:end]), np.log(lrs[:end]))
    steepest = int(np.argmin(slopes))
    return lrs[steepest] if slopes[steepest] < 0 else None


@contextmanager
def _keep_trainer(trainer: BaseTrainer) -> Iterator[None]:
    """Restore the trainer and its parts at the end of the context."""
    tensors = [*trainer.model.parameters(), *trainer.model.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    optimizer = deepcopy(trainer.optimizer.state_dict())
    scaler = deepcopy(trainer.grad_scaler.state_dict())
    data: Any = trainer.data_loader
    modes = modes_of(trainer.model)
    attributes = dict(vars(trainer))
    try:
        with isolated_rng(), keep_loader_state(data):
            # Reading a position or a batch may begin an epoch, which draws random numbers.
            position = data.state_dict() if hasattr(data, "state_dict") else None
            try:
                yield
            finally:
                if position is not None:
                    data.load_state_dict(position)
    finally:
        vars(trainer).clear()
        vars(trainer).update(attributes)
        trainer.bind_events()
        with torch.no_grad():
            for tensor, values in zip(tensors, before, strict=True):
                tensor.copy_(values)
        trainer.optimizer.state.clear()
        trainer.optimizer.load_state_dict(optimizer)
        if scaler:
            trainer.grad_scaler.load_state_dict(scaler)
        trainer.strategy.zero_grad()
        set_modes(modes)


class LRFindJob:
    """Trains with a learning rate that grows from step to step.

    It suggests the rate at which the loss falls fastest. It writes `<folder>/<run name>-<run
    id>.json`, and no run. See `find_lr` for the other arguments.
    """

    writes = ("folder",)

    def __init__(
        self,
        start_lr: PositiveFloat = 1e-7,
        end_lr: PositiveFloat = 1.0,
        num_iterations: Annotated[int, Ge(2)] = 100,
        smoothing_factor: PositiveFloat = 0.05,
        divergence_threshold: PositiveFloat = 4.0,
        folder: NonEmptyText = "outputs/lr_find",
    ):
        if start_lr >= end_lr:
            raise ConfigError(
                f"job.start_lr={start_lr:g}: must be less than job.end_lr={end_lr:g}."
            )
        self.test = _RangeTest(
            start_lr, end_lr, num_iterations, smoothing_factor, divergence_threshold
        )
        self.folder = Path(folder)

    def run(self, config: RunConfig) -> dict[str, object]:
        rank = ranks.Ranks.from_env().rank
        setup_logging(None, rank)
        trainer = trial_trainer(config)
        try:
            result = self.test.measure(trainer)
        except ValueError as error:
            raise ConfigError(f"job=lr_find: {error}") from error
        trainer.strategy.teardown()
        if rank == 0:
            _report(result, self.folder / f"{config.run.name}-{config.run.id}.json")
        return result.to_dict()


def _report(result: LRFinderResult, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, json.dumps(result.to_dict(), indent=1).encode())
    logger.info("The curve is in %s.", file)
    if result.stopped:
        logger.info("Stopped after %s: %s.", plural(len(result.losses), "step"), result.stopped)
    if result.suggested_lr is None:
        logger.warning("No suggestion: the loss does not fall, or was not finite; set job.end_lr.")
    else:
        print(f"optimizer.lr={result.suggested_lr:.2g}", flush=True)
