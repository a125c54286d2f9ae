"""Means of loss and records over the samples of all ranks' batches."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain

import torch

from launcher.data.evaluation_loader import EvaluationLoader
from launcher.hooks.base import Records
from launcher.hooks.evaluation_mode import in_evaluation
from launcher.hooks.metrics import Metrics
from launcher.hooks.records import batch_size, flatten
from launcher.models.output import OUTPUTS
from launcher.process import ranks, signals
from launcher.process.lanes import Lanes
from launcher.process.rng import seed_lane
from launcher.strategies.weights import unwrap

Number = torch.Tensor | float
Sums = dict[str, tuple[Number, Number]]
"""A sum over samples (or targets) and their number, by flat name."""
Part = dict[str, tuple[float, int]]
"""Such sums, read from the device."""


def add_mean(sums: Sums, name: str, value: Number, size: Number) -> None:
    """Add a mean over `size` samples or targets.

    The sum is in double precision. A float32 sum over many batches would lose the small difference
    between two checkpoints.
    """
    if isinstance(value, torch.Tensor) and value.device.type != "mps":
        value = value.double()
    total, count = sums.get(name, (0.0, 0))
    sums[name] = total + value * size, count + size


def to_part(sums: Sums) -> Part:
    return {name: (float(total), int(count)) for name, (total, count) in sums.items()}


def combine(parts: Sequence[Part]) -> dict[str, float]:
    """Return the means over all parts, by the names that have a sample or target."""
    pairs = {
        name: [part[name] for part in parts if name in part]
        for name in dict.fromkeys(chain(*parts))
    }
    counts = {name: sum(count for _, count in pairs[name]) for name in pairs}
    return {
        name: sum(total for total, _ in pairs[name]) / counts[name]
        for name in pairs
        if counts[name]
    }


@dataclass(frozen=True)
class BatchOrder:
    """The number and the random state of each batch of an evaluation.

    The state is a function of the run's seed, the step of the weights and the number, so an
    evaluation that is repeated, by a resume or another process, draws the same random numbers. With
    lanes, the batches are also combined in the order of their numbers, regardless of their ranks.
    """

    seed: int
    step: int
    lanes: Lanes | None = None

    def begin(self, turn: int) -> int:
        """Set the random state of this rank's batch at a turn, and return its number."""
        number = turn * ranks.world_size() + ranks.rank()
        first = 1 if self.lanes is None else self.lanes.count + 1
        seed_lane(self.seed, self.step, first + number)
        return number

    def of_all_ranks(self, parts: Mapping[int, Sums]) -> list[Part]:
        numbered = [(number, to_part(sums)) for number, sums in parts.items()]
        gathered = dict(chain(*ranks.all_gather(numbered)))
        return [gathered[number] for number in sorted(gathered)]


@dataclass(frozen=True)
class SampleMeans:
    """Computes means of loss and records over samples, by flat name.

    If only some batches have a record, its mean is over their samples. A language model also gets
    `perplexity`, exp(loss).

    Args:
        forward: function that returns loss and records of a batch.
        model: the model, which is in evaluation mode meanwhile.
        context: context of each forward pass.
        num_targets: function that returns the number of targets of a batch, for means over targets.
            Default None: means over samples.
        metrics: already reset.
    """

    forward: Callable[[object], tuple[torch.Tensor | None, Records]]
    model: torch.nn.Module
    context: Callable[[], AbstractContextManager[object]]
    num_targets: Callable[[object], torch.Tensor | int | None] = lambda batch: None
    metrics: Metrics | None = None

    def over_ranks(self, batches: Iterable[object], order: BatchOrder) -> dict[str, object] | None:
        """Compute the means over the batches of all ranks, or None if a signal came on some rank.

        Raises:
            ValueError: `forward` returned no loss, or there was no batch.
        """
        try:
            parts = self._sum_batches(batches, order)
        except signals.Interrupted:
            return None
        if order.lanes is not None:
            return self._complete(order.of_all_ranks(parts))
        return self._complete(ranks.all_gather(to_part(parts.get(0, {}))))

    def _sum_batches(self, batches: Iterable[object], order: BatchOrder) -> dict[int, Sums]:
        """Return sums over this rank's batches under 0, or with lanes of each by its number."""
        parts: dict[int, Sums] = {}
        has_metrics = self.metrics is not None and bool(self.metrics.metrics)
        with in_evaluation(self.model, needs_outputs=has_metrics):
            for turn, (batch, is_new) in enumerate(_in_step(batches)):
                number = order.begin(turn)
                with self.context():
                    loss, records = self.forward(batch)
                if loss is not None and is_new:
                    key = 0 if order.lanes is None else number
                    self._add(parts.setdefault(key, {}), batch, loss, records)
        return parts

    def _add(self, sums: Sums, batch: object, loss: torch.Tensor, records: Records) -> None:
        if self.metrics is not None:
            self.metrics.update(unwrap(self.model), records)
        records = {name: value for name, value in records.items() if name not in OUTPUTS}
        targets = self.num_targets(batch)
        size = batch_size(batch) if targets is None else targets
        for name, value in flatten({"loss": loss, **records}).items():
            if value is not None:
                add_mean(sums, name, value, size)

    def _complete(self, parts: Sequence[Part]) -> dict[str, object]:
        means = combine(parts)
        if "loss" not in means:
            raise ValueError("No validation batch has a loss or a target.")
        if getattr(unwrap(self.model), "is_language_model", False):
            means["perplexity"] = math.exp(means["loss"]) if means["loss"] < 700 else math.inf
        return means | (self.metrics.compute() if self.metrics is not None else {})


_DONE, _HAS_BATCH, _EMPTY, _SIGNAL = range(4)


def _in_step(batches: Iterable[object]) -> Iterator[tuple[object, bool]]:
    """Yield this rank's batches, and whether each counts.

    Once they are used up, the last one is repeated without counting while other ranks have more. So
    all ranks make the same number of forward passes, which may be collective, and stop together on
    a signal.
    """
    source, last = iter(batches), None
    while True:
        batch = next(source, None)
        if batch is not None:
            last = batch
        elif last is None and isinstance(batches, EvaluationLoader):
            last = batches.first_batch()
        status = _HAS_BATCH if batch is not None else _EMPTY if last is None else _DONE
        highest = ranks.maximum(_SIGNAL if signals.first_signal() else status)
        if highest == _SIGNAL:
            raise signals.Interrupted
        if highest == _DONE or (highest == _EMPTY and ranks.world_size() == 1):
            return
        if highest == _EMPTY:
            raise ValueError(
                "Some rank has no validation batch: there are fewer batches than ranks."
            )
        yield last, batch is not None
