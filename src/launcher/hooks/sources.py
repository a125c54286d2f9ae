"""Measures the loss of each source of a mixture, and ends training under `data.exhausted=stop`."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch

from launcher.data.mixture_order import MixtureOrder
from launcher.errors import ConfigError
from launcher.hooks.base import BaseHook
from launcher.hooks.evaluation_mode import evaluating, without_compilation
from launcher.hooks.sample_means import Sums, add_mean, combine, to_part
from launcher.hooks.view import TrainerView
from launcher.process import ranks
from launcher.types import PositiveInt


class SourcesHook(BaseHook):
    """Logs `train/loss/<source>`, the mean loss of the step's samples of each source.

    It is measured before the update, in evaluation mode. It costs a forward pass without gradients
    for each source, in the steps of `interval`. With a `data.collate_fn` the samples are read
    again, since its batches cannot be divided.
    """

    def __init__(self, interval: PositiveInt = 10):
        self.interval = interval
        self._start = 0
        self._count = 0
        self._end: int | None = None
        self._sums: list[Sums] = []
        """One entry for each lane of this rank, or without lanes one for all micro-batches."""

    def on_ready(self, trainer: TrainerView) -> None:
        end = self._order(trainer).end()
        self._end = end
        if end is not None and trainer.step == 0 and end < self._per_step(trainer):
            raise ConfigError(
                f"data.exhausted=stop: a source has no more samples after {end} samples of the"
                f" mixture, fewer than a step has ({self._per_step(trainer)}); use a smaller"
                " data.batch_size, or data.exhausted=repeat."
            )

    def on_before_step(self, trainer: TrainerView) -> None:
        self._start = trainer.data_loader.samples
        self._count = 0
        self._sums = []

    def on_batch(self, trainer: TrainerView, batch: Any) -> None:
        number = self._count
        self._count += 1
        # After these, the step is repeated with other batches.
        if not self._is_due(trainer) or number >= trainer.gradient_accumulation_steps:
            return
        loader = trainer.data_loader
        order = self._order(trainer)
        position = self._start + loader.share.number(number) * loader.micro_batch_size
        sources, _ = order.locate(position, loader.micro_batch_size)
        if not self._sums or trainer.strategy.lanes is not None:
            self._sums.append({})
        with evaluating(trainer), without_compilation():
            for source, name in enumerate(order.names):
                chosen = np.flatnonzero(sources == source)
                self._measure(trainer, name, batch, position, chosen)

    def _measure(
        self, trainer: TrainerView, name: str, batch: Any, position: int, chosen: np.ndarray
    ) -> None:
        """Add the loss of a source's samples of the batch at a position.

        The forward pass of a sharded model is collective, so a rank without such samples makes it
        too, with all samples, which do not count.
        """
        part = batch
        loader = trainer.data_loader
        if len(chosen) and loader.divides_batches:
            part = select_samples(batch, torch.from_numpy(chosen))
        elif len(chosen):
            part = loader.read_again(position, chosen)
        with trainer.strategy.forward_context():
            loss, _ = trainer.forward(part)
        if loss is not None and len(chosen):
            targets = trainer.num_targets(part)
            size = len(chosen) if targets is None else targets
            add_mean(self._sums[-1], name, loss, size)

    def on_after_step(self, trainer: TrainerView) -> None:
        if self._is_due(trainer):
            gathered = ranks.all_gather([*map(to_part, self._sums)])
            lanes = trainer.strategy.lanes
            parts = [*chain(*gathered)] if lanes is None else lanes.in_order(gathered)
            means = combine(parts)
            if means:
                trainer.log({"train": {"loss": means}})
        end = self._end
        if end is not None and trainer.data_loader.samples + self._per_step(trainer) > end:
            order = self._order(trainer)
            name = order.names[int(np.argmax(order.counts(end) >= order.sizes))]
            reason = f"the source {name} has no samples for another step (data.exhausted=stop)"
            trainer.logger.info("Step %d: training ends: %s.", trainer.step, reason)
            trainer.state.stop(reason)

    def _is_due(self, trainer: TrainerView) -> bool:
        return trainer.step % self.interval == 0 or trainer.is_last_step

    def _order(self, trainer: TrainerView) -> MixtureOrder:
        order: MixtureOrder = trainer.data_loader.order
        return order

    def _per_step(self, trainer: TrainerView) -> int:
        return int(trainer.data_loader.samples_per_batch * trainer.gradient_accumulation_steps)


def select_samples(batch: object, chosen: torch.Tensor) -> Any:
    """Select some samples of a batch that torch's `default_collate` has made.

    The first axis of each tensor is the batch, and so is a sequence of texts.
    """
    if isinstance(batch, torch.Tensor):
        return batch[chosen.to(batch.device)]
    if isinstance(batch, Mapping):
        return {key: select_samples(value, chosen) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        if batch and isinstance(batch[0], str | bytes):
            return [batch[int(index)] for index in chosen]
        items = [select_samples(item, chosen) for item in batch]
        if hasattr(batch, "_fields"):
            return type(batch)(*items)
        return type(batch)(items)
    return batch
