"""The batches of a user's own loader in an evaluation, with the number of samples of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from launcher.data.batch_samples import DECLARE, CountedCollate, NotedSizes
from launcher.data.user_dataloader import (
    UNCHANGED,
    inner_order,
    is_plain,
    iterates_as_torch,
    with_order,
)
from launcher.data.workers import begin_pass

Pairs = Iterator[tuple[int | None, Any]]
"""Batches, each after its number of samples, or None if that is not known."""


def counted(batches: Any) -> Any:
    """Return the batches with an attribute `batch_samples`, their own if they have one."""
    if hasattr(batches, "batch_samples"):
        return batches
    return CountedBatches(batches)


class CountedBatches:
    """Iterates over a loader. `batch_samples` is the samples of the last batch, None if unknown."""

    def __init__(self, batches: Any):
        self.batches = batches
        self.batch_samples: int | None = None
        self.has_said = False
        """True once `what_counts` was logged."""
        self._pairs = _pairs_of(batches)

    def __iter__(self) -> Iterator[Any]:
        for samples, batch in self._pairs():
            self.batch_samples = samples
            yield batch

    def what_counts(self) -> str | None:
        """Return what counts where that is not the samples of a batch, or None."""
        name = type(self.batches).__name__
        if self.batch_samples is None:
            return (
                f"how many samples a batch of {name} has is not known, so each batch counts once;"
                f" use a torch DataLoader, or {DECLARE}."
            )
        if isinstance(self.batches, DataLoader) and self.batches.batch_sampler is None:
            return (
                f"{name} has batch_size=None, so each index that its sampler yields counts as one"
                " sample."
            )
        return None


def _pairs_of(batches: Any) -> Callable[[], Pairs]:
    """Return a function that makes one pass. It keeps workers that persist between passes."""
    if is_plain(batches):
        # The batch sampler, or the sampler, yields the indices of each batch.
        sizes = NotedSizes(inner_order(batches), batches.batch_sampler is not None)
        ordered = with_order(batches, sizes)
        return lambda: ((sizes.take(), batch) for batch in begin_pass(ordered))
    if not isinstance(batches, DataLoader) or not iterates_as_torch(batches):
        return lambda: ((None, batch) for batch in begin_pass(batches))
    if batches.batch_sampler is None:
        size = 1 if isinstance(batches.dataset, IterableDataset) else None
        return lambda: ((size, batch) for batch in begin_pass(batches))
    paired = _with_counted_collate(batches)
    return lambda: begin_pass(paired)


def _with_counted_collate(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return the loader with the number of samples of each batch, as its collate function knows."""
    options: dict[str, Any] = {name: getattr(loader, name) for name in UNCHANGED}
    options["collate_fn"] = CountedCollate(loader.collate_fn)
    if isinstance(loader.dataset, IterableDataset):
        options |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    else:
        options |= {"batch_sampler": loader.batch_sampler, "in_order": loader.in_order}
    return DataLoader(loader.dataset, **options, persistent_workers=loader.persistent_workers)
