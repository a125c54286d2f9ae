"""Means of loss and records over the samples of all ranks' batches."""

import logging
import math
from collections.abc import Iterator, Sequence
from itertools import chain

import torch

from launcher.data.counted_batches import CountedBatches
from launcher.data.evaluation_loader import EvaluationLoader
from launcher.data.workers import begin_pass
from launcher.errors import TrainingError
from launcher.hooks.evaluation_mode import evaluating
from launcher.hooks.metrics import Metrics
from launcher.hooks.records import flatten
from launcher.hooks.view import Records, TrainerView
from launcher.models.base import IGNORED
from launcher.models.declared import is_language_model
from launcher.models.output import OUTPUTS
from launcher.process import ranks, signals
from launcher.process.rng import seed_lane
from launcher.strategies.weights import unwrap

SizedBatches = EvaluationLoader | CountedBatches
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


def measure_means(
    trainer: TrainerView, batches: SizedBatches, step: int, metrics: Metrics
) -> Records | None:
    """Return means of loss and records over the samples (or targets) of all ranks, by flat name.

    The step is the step of the weights. The metrics are reset already.
    If only some batches have a record, its mean is over their samples. A language model also gets
    `perplexity`, exp(loss). With lanes, the batches are combined in the order of their numbers,
    regardless of their ranks.

    Returns:
        None if a signal came on some rank.
    Raises:
        TrainingError: `forward` returned no loss, or there was no batch.
    """
    try:
        sums = _sum_batches(trainer, batches, step, metrics)
    except signals.Interrupted:
        return None
    numbered = {number: to_part(of_batches) for number, of_batches in sums.items()}
    gathered = list(chain.from_iterable(part.items() for part in ranks.all_gather(numbered)))
    # Without lanes, each rank has one part; the sort keeps the order of the ranks.
    means = combine([part for _, part in sorted(gathered, key=lambda item: item[0])])
    if "loss" not in means:
        raise TrainingError(
            "The evaluation has no loss: forward returned None for each batch, or all labels are"
            f" {IGNORED} (ignored); check the validation data."
        )
    if is_language_model(unwrap(trainer.model)):
        means["perplexity"] = math.exp(means["loss"]) if means["loss"] < 700 else math.inf
    return means | metrics.compute()


def _sum_batches(
    trainer: TrainerView, batches: SizedBatches, step: int, metrics: Metrics
) -> dict[int, Sums]:
    """Return sums over this rank's batches under 0, or with lanes of each by its number."""
    parts: dict[int, Sums] = {}
    lanes = trainer.strategy.lanes
    first = 1 if lanes is None else lanes.count + 1
    with evaluating(trainer, needs_outputs=bool(metrics.metrics)):
        # An evaluation that is repeated, by a resume or another process, draws the same random
        # numbers: for the first batch, and for each forward pass and the batch after it.
        seed_lane(trainer.strategy.plan.seed, step, first - 1)
        for turn, (batch, is_new) in enumerate(_in_step(batches)):
            number = turn * ranks.world_size() + ranks.rank()
            seed_lane(trainer.strategy.plan.seed, step, first + number)
            with trainer.strategy.forward_context():
                loss, records = trainer.call_forward(batch)
            if loss is not None and is_new:
                metrics.update(unwrap(trainer.model), records)
                sums = parts.setdefault(0 if lanes is None else number, {})
                size = trainer.num_targets(batch)
                if size is None:
                    size = 1 if batches.batch_samples is None else batches.batch_samples
                    if number:
                        _say_what_counts(trainer, batches)
                _add(sums, {"loss": loss, **records}, size)
    return parts


def _say_what_counts(trainer: TrainerView, batches: SizedBatches) -> None:
    """Log once what a mean over several batches counts if that is not the samples of each."""
    if isinstance(batches, CountedBatches) and not batches.has_said:
        batches.has_said = True
        level = logging.WARNING if batches.batch_samples is None else logging.INFO
        text = batches.what_counts()
        if text is not None:
            trainer.logger.log(level, "Evaluation: %s", text)


def _add(sums: Sums, records: Records, size: Number) -> None:
    records = {name: value for name, value in records.items() if name not in OUTPUTS}
    for name, value in flatten(records).items():
        if value is not None:
            add_mean(sums, name, value, size)


_DONE, _HAS_BATCH, _EMPTY, _SIGNAL = range(4)


def _in_step(batches: SizedBatches) -> Iterator[tuple[object, bool]]:
    """Yield this rank's batches, and whether each counts.

    Once they are used up, the last one is repeated without counting while other ranks have more. So
    all ranks make the same number of forward passes, which may be collective, and stop together on
    a signal.
    """
    source = begin_pass(batches)
    last = None
    while True:
        batch = next(source, None)
        if batch is not None:
            last = batch
        elif last is None and isinstance(batches, EvaluationLoader):
            last = batches.first_batch()
        status = _HAS_BATCH
        if batch is None:
            status = _EMPTY if last is None else _DONE
        highest = ranks.maximum(_SIGNAL if signals.first_signal() else status)
        if highest == _SIGNAL:
            raise signals.Interrupted
        if highest == _DONE or (highest == _EMPTY and ranks.world_size() == 1):
            return
        if highest == _EMPTY:
            raise TrainingError(
                "Some rank has no validation batch, since there are fewer batches than ranks; use"
                " fewer ranks, or more validation data."
            )
        yield last, batch is not None
