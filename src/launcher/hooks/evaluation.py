"""Metrics on the validation set, every few steps and at the end."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch

from launcher.errors import TrainingError
from launcher.hooks.base import BaseHook, Records, RunContext, TrainerView
from launcher.hooks.records import flatten, show
from launcher.run import ranks, signals
from launcher.run.rng import isolated_rng
from launcher.types import NonNegativeInt, PositiveInt


class EvaluationHook(BaseHook):
    """Logs `{"val": {"loss": ..., and what forward records}}`, means over the samples.

    It does not change training: random state and the model's mode are restored. A signal ends an evaluation between two
    batches; the run repeats it when it resumes.

    Args:
        interval: in optimizer steps; 0: at the last step only.
        loader: returns an iterable of this rank's held-out batches, or None if nothing is held out. None: the run's.
        max_samples: use the first of the run's validation set, this many over all ranks; None: all of it.
        at_start: also before the first step.
    Raises:
        ValueError: `max_samples` with a `loader` of your own.
    """

    def __init__(
        self,
        interval: NonNegativeInt = 100,
        loader: Callable[[], Iterable[Any] | None] | None = None,
        max_samples: PositiveInt | None = None,
        at_start: bool = True,
    ):
        if loader is not None and max_samples is not None:
            raise ValueError("max_samples limits the run's own validation set; limit your loader instead.")
        self.interval, self.loader, self.max_samples, self.at_start = interval, loader, max_samples, at_start
        self._batches: Iterable[Any] | None = None
        self._done_at = -1

    def bind(self, context: RunContext) -> None:
        if self.loader is None and context.val_loader is not None:
            limit = {} if self.max_samples is None else {"max_samples": self.max_samples}
            self.loader = partial(context.val_loader, **limit)

    def on_ready(self, trainer: TrainerView) -> None:
        self._batches = self.loader() if self.loader is not None else None
        if self._batches is None:
            trainer.logger.info("Nothing is held out: there are no val/ metrics.")
        missed = trainer.step > 0 and self._is_due(trainer)
        if missed or (trainer.step == 0 and self.at_start):
            self._evaluate(trainer)

    def on_after_step(self, trainer: TrainerView) -> None:
        if self._is_due(trainer):
            self._evaluate(trainer)

    def on_step_boundary(self, trainer: TrainerView) -> None:
        if trainer.is_last_step:  # a hook after this one may have ended the training
            self.on_after_step(trainer)

    def _is_due(self, trainer: TrainerView) -> bool:
        at_interval = bool(self.interval) and trainer.step % self.interval == 0
        return self._done_at != trainer.step and (at_interval or trainer.is_last_step)

    def _evaluate(self, trainer: TrainerView) -> None:
        if self._batches is None:
            return
        context, num_targets = trainer.strategy.forward_context, trainer.num_targets
        trainer.fire("on_evaluation_start")
        try:
            metrics = evaluate(trainer.forward, trainer.model, self._batches, context, num_targets)
        finally:
            trainer.fire("on_evaluation_end")
        if metrics is None:
            trainer.stop_at_this_boundary()
            return
        self._done_at = trainer.step
        trainer.logger.info(
            "Step %d: %s", trainer.step, " ".join(f"val/{key} {show(value)}" for key, value in flatten(metrics))
        )
        trainer.log({"val": metrics})
        if not math.isfinite(metrics["loss"]):
            trainer.logger.warning("Step %d: val/loss is %s.", trainer.step, metrics["loss"])
            if trainer.is_last_step and trainer.step > 0:
                skipped = trainer.state.skipped_in_row
                raise TrainingError(
                    f"Training ended with val/loss={metrics['loss']} at step {trainer.step}"
                    + (f", after {skipped} skipped updates in a row" if skipped else "")
                    + ". This state is not saved. Lower the learning rate or check the data."
                )

    def on_state_dict(self, trainer: TrainerView, state_dict: dict[str, Any]) -> None:
        state_dict["evaluation"] = {"done_at": self._done_at}

    def on_load_state_dict(self, trainer: TrainerView, state_dict: dict[str, Any]) -> None:
        self._done_at = state_dict.get("evaluation", {}).get("done_at", -1)


def evaluate(
    forward: Callable[[Any], tuple[torch.Tensor | None, Records]],
    model: torch.nn.Module,
    batches: Iterable[Any],
    context: Callable[[], Any],
    num_targets: Callable[[Any], torch.Tensor | int | None] = lambda batch: None,
) -> dict[str, float] | None:
    """Means of loss and records over the samples of all ranks' batches, by flat name. A record that some batches do not
    have is a mean over the samples of those that do.

    Args:
        num_targets: of a batch; the means are over targets instead of samples where it is not None.
    Returns:
        None: a signal ended it on some rank.
    Raises:
        ValueError: `forward` gave no loss, or there was no batch.
    """
    was_training = model.training
    model.eval()
    sums: dict[str, Any] = {}
    samples: dict[str, Any] = {}
    try:
        with isolated_rng(), torch.no_grad():
            for batch, is_new in _in_step(batches):
                with context():
                    loss, records = forward(batch)
                if loss is None or not is_new:
                    continue
                targets = num_targets(batch)
                size = batch_size(batch) if targets is None else targets
                for name, value in flatten({"loss": loss, **records}):
                    if value is None:
                        continue
                    # double: a float32 sum over many batches would lose what tells two checkpoints apart
                    value = value.double() if isinstance(value, torch.Tensor) and value.device.type != "mps" else value
                    sums[name] = sums.get(name, 0.0) + value * size
                    samples[name] = samples.get(name, 0) + size
    except signals.Interrupted:
        return None
    finally:
        model.train(was_training)
    totals = ranks.all_gather({name: (float(total), int(samples[name])) for name, total in sums.items()})
    parts = {name: [part[name] for part in totals if name in part] for name in dict.fromkeys(chain(*totals))}
    counts = {name: sum(count for _, count in of_ranks) for name, of_ranks in parts.items()}
    if not counts.get("loss"):
        raise ValueError("No held-out batch has a loss, or a target.")
    return {
        name: sum(total for total, _ in of_ranks) / counts[name] for name, of_ranks in parts.items() if counts[name]
    }


_DONE, _HAS_BATCH, _EMPTY, _SIGNAL = range(4)


def _in_step(batches: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """This rank's batches, and whether each counts. Once they are used up, the last one is repeated, without counting,
    while other ranks have more: all ranks make the same number of forward passes, which may be collective, and leave
    together on a signal.

    Raises:
        signals.Interrupted: some rank has received a signal.
        ValueError: some rank has no batch at all, while others have.
    """
    source, last, has_any = iter(batches), None, False
    while True:
        batch = next(source, None)
        own = _HAS_BATCH if batch is not None else _DONE if has_any else _EMPTY
        highest = ranks.maximum(_SIGNAL if signals.received() else own)
        if highest == _SIGNAL:
            raise signals.Interrupted
        if highest == _DONE or (highest == _EMPTY and ranks.world_size() == 1):
            return
        if highest == _EMPTY:
            raise ValueError("Some rank has no held-out batch: there are fewer batches than ranks.")
        if batch is not None:
            last, has_any = batch, True
        yield last, batch is not None


def batch_size(batch: Any) -> int:
    """Samples in a batch: the first dimension of its first tensor; 1 if it has none."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else 1
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    return next((batch_size(value) for value in values if isinstance(value, (torch.Tensor, list, tuple, dict))), 1)
