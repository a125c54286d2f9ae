"""DataSource, the target of a `data` configuration: it makes datasets and their loaders."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from launcher.data.sampler import SkippingOrder, before_a_skip
from launcher.types import NumWorkers, PositiveInt

if TYPE_CHECKING:
    import torch

    from launcher.data.evaluation_loader import EvaluationLoader
    from launcher.data.loader import ResumableLoader
    from launcher.process.lanes import Lanes

logger = logging.getLogger("launcher")


@dataclass(kw_only=True, eq=False)
class LoaderSettings:
    """The settings that every source has.

    Args:
        batch_size: the *global* number of samples per optimizer step, on any machine.
        val_batch_size: the *global* number of samples per forward pass of an evaluation. Default
            None: the size of a micro-batch.
        skip: steps whose samples are passed over, as pairs `[first, last]`; see `SkippingOrder`.
    """

    later_keys = ("skip",)
    matters_from: ClassVar = {"skip": before_a_skip}

    batch_size: PositiveInt
    val_batch_size: PositiveInt | None = None
    num_workers: NumWorkers = 0
    shuffle: bool = True
    skip: list[list[PositiveInt]] | None = None


class DataSource(LoaderSettings, ABC):
    """A source of training and validation samples.

    A source with settings of its own is a dataclass, whose fields are the keys of its
    configuration. Its constructor only stores them: it opens no file and imports nothing heavy.

    A dataset may be map-style (`__len__` and `__getitem__`) or a
    `torch.utils.data.IterableDataset`. A map-style dataset may add `get_batch(indices) -> batch`,
    which takes an int64 array and returns a collated batch, and `fingerprint`, a string that
    changes when the samples do.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass(kw_only=True, eq=False)
        ... class Squares(DataSource):
        ...     size: int = 8
        ...
        ...     def train_dataset(self):
        ...         numbers = torch.arange(self.size, dtype=torch.float32)
        ...         return list(zip(numbers, numbers**2))
        >>> source = Squares(batch_size=4, shuffle=False)
        >>> input, target = next(iter(source.train_loader(seed=0)))
        >>> target.tolist()
        [0.0, 1.0, 4.0, 9.0]
    """

    seed_samples: bool = False
    """Seed python's, numpy's and torch's global generators for each sample."""

    collate: Callable[[list[Any]], Any] | None = None
    """Makes a batch from a list of samples. Default None: torch's `default_collate`."""
    val_collate: Callable[[list[Any]], Any] | None = None
    """Makes a batch of held-out samples. Default None: the same as `collate`."""

    val_names: Sequence[str] = ()
    """The names of further validation sets; their metrics are `val/<name>/...`."""

    def check(self) -> None:
        """Raise ConfigError for errors that show before any data are read: a missing file."""

    @abstractmethod
    def train_dataset(self) -> Any:
        """The training samples. Raises ConfigError for files that cannot be used."""

    def val_dataset(self) -> Any | None:
        """The held-out samples, or None if there are none."""
        return None

    def test_dataset(self) -> Any | None:
        """The samples of the final test, which training never reads, or None if there are none."""
        return None

    def predict_dataset(self) -> Any | None:
        """Return the new samples of `job=predict`, which `data.predict` names, or None.

        If they have no targets, `has_targets` of the dataset is False.
        """
        return None

    def named_val_dataset(self, name: str) -> Any:
        """Return the samples of a further validation set, by one of `val_names`."""
        raise KeyError(name)

    def train_loader(
        self,
        *,
        seed: int,
        micro_batch_size: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str | None = None,
        lanes: Lanes | None = None,
    ) -> ResumableLoader:
        """Make an endless loader of this rank's micro-batches, see `loader.ResumableLoader`."""
        from launcher.data.declared import is_hugging_face_stream
        from launcher.data.loader import ResumableLoader

        dataset = self.train_dataset()
        # A worker seeds the shuffling anew, and the number of workers is not part of a run's id.
        if self.num_workers and is_hugging_face_stream(dataset) and rank == 0:
            logger.warning(
                "data.num_workers=%d: a shuffled stream of Hugging Face's datasets has another"
                " order with workers than without; keep data.num_workers for all attempts of this"
                " run, or use 0.",
                self.num_workers,
            )
        loader = ResumableLoader(
            dataset,
            seed=seed,
            micro_batch_size=micro_batch_size or self.batch_size // world_size,
            rank=rank,
            world_size=world_size,
            num_workers=self.num_workers,
            shuffle=self.shuffle,
            seed_samples=self.seed_samples,
            collate_fn=self.collate,
            device=device,
            lanes=lanes,
        )
        if self.skip:
            loader.order = SkippingOrder(loader.order, self.skip, self.batch_size)
        return loader

    def val_loader(
        self,
        name: str | None = None,
        *,
        batch_size: int | None = None,
        **options: Any,
    ) -> EvaluationLoader | None:
        """Make a loader of one pass over held-out samples, or return None if there are none.

        Args:
            name: one of `val_names`. Default None: the main validation set.
            batch_size: samples per rank and forward pass. Default None: the rank's share of
                `self.val_batch_size`, or else of `self.batch_size`.
            options: rank, world_size, device and max_samples, see `EvaluationLoader`.
        """
        dataset = self.val_dataset() if name is None else self.named_val_dataset(name)
        return self._pass_over(dataset, batch_size, **options)

    def test_loader(
        self, *, batch_size: int | None = None, **options: Any
    ) -> EvaluationLoader | None:
        """Make a loader of the test samples, or return None if there are none; see `val_loader`."""
        return self._pass_over(self.test_dataset(), batch_size, **options)

    def batches(
        self, dataset: object, ranges: Iterable[tuple[int, int]], device: torch.device
    ) -> Iterator[Any]:
        """Yield a batch for each range [start, stop) of indices. Close it to end its workers."""
        from launcher.data.evaluation_loader import batches_of

        collate = self.val_collate or self.collate
        seeds = self.seed_samples
        return batches_of(dataset, ranges, self.num_workers, device, collate, seeds)

    def _pass_over(
        self, dataset: object | None, batch_size: int | None, **options: Any
    ) -> EvaluationLoader | None:
        from launcher.data.evaluation_loader import EvaluationLoader

        if dataset is None:
            return None
        total = self.val_batch_size or self.batch_size
        return EvaluationLoader(
            dataset,
            batch_size or max(1, total // options.get("world_size", 1)),
            num_workers=self.num_workers,
            collate_fn=self.val_collate or self.collate,
            seed_samples=self.seed_samples,
            **options,
        )
