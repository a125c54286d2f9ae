"""Takes batches from a data loader, epoch after epoch, with their weights and the position."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from launcher.data.batch_samples import samples_of_last_batch
from launcher.data.declared import epoch_owners
from launcher.data.user_dataloader import (
    WORKERS_DRAW_ANEW,
    PlainLoader,
    resumable,
    set_epoch,
    why_not_exact,
)
from launcher.data.workers import begin_pass
from launcher.errors import TrainingError
from launcher.hooks.view import TrainState
from launcher.process import ranks, signals

MicroBatches = Iterator[tuple[object, torch.Tensor | None]]
"""Micro-batches, each with the factor of its loss, or None if it counts like the others."""
NumTargets = Callable[[object], torch.Tensor | int | None]


class Batches:
    """The loader's batches, without end.

    `source` is the loader itself, or a wrapper that knows the position in it.

    Args:
        num_targets: function that returns the number of targets of a batch, or None. None if no
            batch has a number.
        device: the device of the weights of batches.
        alone: whether this is the only rank. A signal may then end the wait for the first batch of
            a step, when nothing has been computed yet.
    """

    def __init__(
        self,
        loader: Any,
        logger: logging.Logger,
        num_targets: NumTargets | None,
        device: torch.device,
        alone: bool,
    ):
        self.loader = loader
        self.source = resumable(loader, logger)
        self._logger = logger
        self._num_targets = num_targets
        self._device = device
        self._alone = alone
        self._plain = self.source if isinstance(self.source, PlainLoader) else None
        # Else the user's code may have drawn from the training's generators by then.
        self._is_interruptible = any(getattr(loader, k, 0) for k in ("num_workers", "seed_samples"))
        self._epoch_size: int | None = None
        self._epoch = 0
        self._has_batches = False
        self.local_samples: int | None = 0
        """Samples that this rank has received since the start, or None if that is not known."""
        self.targets: torch.Tensor | int | None = None
        """Targets of the step's batches, of all ranks together, or None if they do not count."""
        self._iterator: Iterator[object]
        self._counters: list[tuple[object, str]] = []
        """The attributes that are the position: their object and name."""
        self._noted: list[object] = []

    def start(self, state: TrainState, may_interrupt: bool = True) -> None:
        """Begin to iterate. A resume has already set the position.

        With `may_interrupt`, the start of a step may be repeated, so a signal may end a wait in it.
        """
        self._state = state
        self._may_interrupt = may_interrupt and self._alone and self._is_interruptible
        counted = (
            (self.loader, "samples"),
            (self.loader, "stream_state"),
            (self._plain, "consumed"),
        )
        self._counters = [(owner, name) for owner, name in counted if hasattr(owner, name)]
        self._epoch_size = getattr(self.loader, "samples_per_epoch", None)
        self._epoch = state.epoch
        self._has_batches = state.step > 0
        set_epoch(self.loader, state.epoch)
        self._warn_of_persistent_workers()
        self._open()

    def _open(self) -> None:
        self._iterator = begin_pass(self.source)
        self._next: Callable[[], Any] = self._iterator.__next__

    def of_step(self, count: int, data_time: list[float]) -> MicroBatches:
        """Yield batches until the step has enough of them, and append their seconds to `data_time`.

        If they count by targets, the first `count` are fetched before the first forward pass, since
        each factor depends on all of them.
        """
        may_interrupt = self._may_interrupt and not data_time
        first = self.next(data_time, may_interrupt)
        num_targets = self._num_targets
        targets = None if num_targets is None else num_targets(first)
        self.targets = targets
        if num_targets is not None and targets is not None and (count > 1 or not self._alone):
            batches = [first, *(self.next(data_time, may_interrupt) for _ in range(count - 1))]
            counts = [targets, *(num_targets(batch) or 0 for batch in batches[1:])]
            weights, self.targets = target_weights(counts, self._device)
            yield from zip(batches, weights, strict=True)
        else:
            yield first, None
        while True:
            yield self.next(data_time, False), None

    def next(self, data_time: list[float], may_interrupt: bool) -> Any:
        """Return the next batch, and append its seconds to `data_time`.

        Raises:
            signals.Interrupted: a signal has ended the wait, if it may.
        """
        start = time.perf_counter()
        try:
            batch = signals.wait_for(self._next) if may_interrupt else self._next()
        except StopIteration:
            batch = self._first_of_next_epoch()
        data_time.append(time.perf_counter() - start)
        # A batch of unknown size makes the sum unknown.
        if self.local_samples is not None:
            samples = samples_of_last_batch(self.source)
            self.local_samples = None if samples is None else self.local_samples + samples
        self._has_batches = True
        self._note_epoch()
        return batch

    def next_epoch(self) -> int:
        """Return the epoch of the next batch."""
        if self._epoch_size is not None:
            return int(self.loader.samples) // self._epoch_size
        if self._plain is not None:
            return self._epoch + self._plain.is_at_end
        return self._epoch + self._has_batches

    def _note_epoch(self) -> None:
        """Count the passes before the last sample that the loader has yielded."""
        if self._epoch_size is not None:
            self._epoch = max(0, self.loader.samples - 1) // self._epoch_size
        self._state.epoch = self._epoch

    def _first_of_next_epoch(self) -> object:
        self._epoch += 1
        set_epoch(self.loader, self._epoch)
        self._open()
        try:
            return self._next()
        except StopIteration:
            if not self._has_batches:
                raise TrainingError("The data loader has no batch: its dataset is empty.") from None
            raise TrainingError(
                f"The data loader has no batch in epoch {self._epoch}, and had some before; each"
                " iter() of it must begin a new pass over the data."
            ) from None

    def _warn_of_persistent_workers(self) -> None:
        """Warn of workers of a loader with its own state, which this class cannot restart."""
        loader = self.loader
        if self._plain is not None or not getattr(loader, "persistent_workers", False):
            return
        name = type(loader).__name__
        dataset = getattr(loader, "dataset", None)
        if isinstance(dataset, IterableDataset) and hasattr(loader, "state_dict"):
            self._logger.warning(
                "%s with persistent workers over a stream: after a resume its epochs may leave out"
                " samples (torchdata's does); use persistent_workers=False.",
                name,
            )
        elif epoch_owners(dataset):
            self._logger.warning(
                "%s with persistent workers: they do not see the dataset's set_epoch; use"
                " persistent_workers=False.",
                name,
            )

    def mark(self) -> None:
        """Note the position, for `rewind`."""
        self._noted = [getattr(owner, name) for owner, name in self._counters]

    def rewind(self) -> None:
        """Return to the noted position: a signal may come just after the loader counted a batch."""
        for (owner, name), value in zip(self._counters, self._noted, strict=True):
            setattr(owner, name, value)
        self._note_epoch()

    def close(self) -> None:
        if hasattr(self._iterator, "close"):
            # The iterator may own worker processes.
            self._iterator.close()

    def position(self) -> Any:
        """Return the position for `load_position`, or None if the loader does not know it."""
        if hasattr(self.source, "state_dict"):
            return self.source.state_dict()
        return None

    def load_position(self, position: object, state: TrainState) -> None:
        """Resume from a saved position, or log why the order starts from the beginning."""
        if position is not None and hasattr(self.source, "load_state_dict"):
            self.source.load_state_dict(position)
            # Torchdata's StatefulDataLoader is a DataLoader too. A plain loader logs it itself.
            if isinstance(self.source, DataLoader) and self.source.num_workers:
                self._logger.info(WORKERS_DRAW_ANEW)
        elif state.step and not state.is_at_end():
            is_known = hasattr(self.source, "load_state_dict")
            reason = "the checkpoint has no position" if is_known else why_not_exact(self.loader)
            self._logger.warning(
                "After this resume the data loader's order starts from the beginning: %s.", reason
            )


def target_weights(
    counts: Sequence[torch.Tensor | int], device: torch.device
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Compute a factor for each micro-batch of this rank, and the number of targets of all ranks.

    The factors are 1 if all counts are equal. The mean over all micro-batches and ranks of (factor
    times mean loss of a micro-batch) is the mean over all targets. All ranks must call it. Nothing
    waits for the device.
    """
    dtype = torch.float32 if device.type == "mps" else torch.float64
    targets = torch.stack([torch.as_tensor(count, dtype=dtype, device=device) for count in counts])
    total = ranks.sum_over_ranks(targets.sum())
    factors = targets * (len(counts) * ranks.world_size()) / total.clamp(min=1)
    return list(factors.unbind()), total


def weigh(value: object, weight: torch.Tensor) -> Any:
    """Multiply numbers and tensors by `weight`, including nested records."""
    if isinstance(value, Mapping):
        return {key: weigh(item, weight) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        if value.dtype in (torch.float16, torch.bfloat16):
            # The factor has more digits.
            value = value.float()
        return value * (weight.to(value.dtype) if value.is_floating_point() else weight)
    return value * weight if isinstance(value, (int, float)) else value
