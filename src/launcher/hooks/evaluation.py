"""Held-out metrics every few steps and at the end."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from launcher.errors import TrainingError
from launcher.hooks.base import BaseHook, Records, RunContext, TrainerView
from launcher.hooks.records import flatten
from launcher.run import ranks, signals
from launcher.run.rng import isolated_rng
from launcher.types import NonNegativeInt


class EvaluationHook(BaseHook):
    """Logs `{"val": {"loss": ..., and what forward records}}`, means over the samples.

    Training is not moved by it: random numbers are put back, and the model's mode. A signal ends an evaluation between
    two batches; the run makes it up when it goes on.

    Args:
        interval: in optimizer steps; 0: at the last step alone.
        loader: gives an iterable of the held-out batches of this rank, or None if nothing is held out.
        max_batches: look at this many alone.
        at_start: also before the first step.
    """

    def __init__(
        self,
        interval: NonNegativeInt = 100,
        loader: Callable[[], Iterable[Any] | None] | None = None,
        max_batches: int | None = None,
        at_start: bool = True,
    ):
        self.interval, self.loader, self.max_batches, self.at_start = interval, loader, max_batches, at_start
        self._batches: Iterable[Any] | None = None
        self._done_at = -1

    def bind(self, context: RunContext) -> None:
        self.loader = self.loader or context.val_loader

    def on_ready(self, trainer: TrainerView) -> None:
        self._batches = self.loader() if self.loader is not None else None
        if self._batches is None:
            trainer.logger.info("No held-out data: there will be no val/ metrics.")
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
        metrics = evaluate(
            trainer.forward, trainer.model, self._batches, trainer.strategy.forward_context, self.max_batches
        )
        if metrics is None:
            return  # a signal: the boundary that follows will act on it
        self._done_at = trainer.step
        trainer.logger.info(
            "Step %d: %s", trainer.step, " ".join(f"val/{key} {value:.4f}" for key, value in flatten(metrics))
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
    max_batches: int | None = None,
) -> dict[str, float] | None:
    """Means of loss and records over the samples of all ranks' batches, by flat name.

    Returns:
        None: a signal ended it on some rank.
    Raises:
        ValueError: `forward` gave no loss, or there was no batch.
    """
    was_training = model.training
    model.eval()
    sums: dict[str, Any] = {}
    count = 0
    try:
        with isolated_rng(), torch.no_grad():
            for batch, counts in _in_step(batches, max_batches):
                with context():
                    loss, records = forward(batch)
                if loss is None or not counts:
                    continue
                size = batch_size(batch)
                count += size
                for name, value in flatten({"loss": loss, **records}):
                    # double: a float32 sum over many batches would lose what tells two checkpoints apart
                    value = value.double() if isinstance(value, torch.Tensor) and value.device.type != "mps" else value
                    sums[name] = sums.get(name, 0.0) + value * size
    except signals.Interrupted:
        return None
    finally:
        model.train(was_training)
    totals = ranks.all_gather(({k: float(v) for k, v in sums.items()}, count))
    samples = sum(n for _, n in totals)
    if not samples:
        raise ValueError("The held-out data gave no batch with a loss.")
    names = dict.fromkeys(name for part, _ in totals for name in part)
    return {name: sum(part.get(name, 0.0) for part, _ in totals) / samples for name in names}


_DONE, _GOING, _NOTHING, _SIGNAL = range(4)


def _in_step(batches: Iterable[Any], max_batches: int | None) -> Iterator[tuple[Any, bool]]:
    """This rank's batches, and whether they count: while other ranks have some left, the last one again, which does
    not. So all make equally many forward passes, which may wait for each other, and leave together on a signal.

    Raises:
        signals.Interrupted: a signal has come to some rank.
        ValueError: a rank has no batch at all, while others have.
    """
    source, batch, seen = iter(batches), None, 0
    while True:
        found = next(source, None) if max_batches is None or seen < max_batches else None
        mine = _SIGNAL if signals.received() else _GOING if found is not None else _DONE if seen else _NOTHING
        every = ranks.maximum(mine)
        if every == _SIGNAL:
            raise signals.Interrupted
        if every == _DONE or (every == _NOTHING and ranks.world_size() == 1):
            return
        if every == _NOTHING:
            raise ValueError("The held-out data gave some rank no batch: there are fewer than ranks.")
        if found is not None:
            batch, seen = found, seen + 1
        yield batch, found is not None


def batch_size(batch: Any) -> int:
    """Samples in a batch: the first dimension of its first tensor; 1 if it has none."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else 1
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    return next((batch_size(value) for value in values if isinstance(value, (torch.Tensor, list, tuple, dict))), 1)
