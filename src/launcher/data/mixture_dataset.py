"""The dataset of a mixture: several datasets laid one after the other."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from launcher.data.mixture_order import MixtureOrder, Policy, Weights
from launcher.data.sampler import OrderedDataset
from launcher.errors import ConfigError


class Mixture(OrderedDataset):
    """Datasets laid one after the other, and the order in which a training reads them.

    Raises:
        ConfigError: a source has no length, or no sample.
    """

    def __init__(
        self, datasets: Mapping[str, Any], schedule: Sequence[tuple[int, Weights]], policy: Policy
    ):
        self.datasets, self.schedule, self.policy = dict(datasets), schedule, policy
        for name, dataset in self.datasets.items():
            if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
                raise ConfigError(
                    f"data.sources.{name}: {type(dataset).__name__} lacks __len__ or __getitem__,"
                    " which a source needs."
                )
            if not len(dataset):
                raise ConfigError(f"data.sources.{name}: {type(dataset).__name__} is empty.")
        self.sizes = {name: len(dataset) for name, dataset in self.datasets.items()}
        self._ends = np.cumsum(list(self.sizes.values()))

    def order(self, seed: int, shuffle: bool) -> MixtureOrder:
        return MixtureOrder(self.sizes, self.schedule, self.policy, seed, shuffle)

    @property
    def fingerprint(self) -> str:
        """A string that changes when the samples do.

        It does not change with the weights, since a fork may have other weights.
        """
        marks = (getattr(dataset, "fingerprint", None) for dataset in self.datasets.values())
        return "; ".join(
            f"{name}: {mark or f'{size} samples'}"
            for (name, size), mark in zip(self.sizes.items(), marks, strict=True)
        )

    def source_of(self, indices: np.ndarray) -> np.ndarray:
        """The number of the source of each index: int64 [N]."""
        return np.searchsorted(self._ends, indices, side="right")

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> object:
        source = int(self.source_of(np.array([index]))[0])
        names = list(self.sizes)
        return self.datasets[names[source]][index - (int(self._ends[source - 1]) if source else 0)]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))
