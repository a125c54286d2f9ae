"""The dataset of a mixture."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from launcher.data.declared import State, epoch_owners, state_owner
from launcher.data.iterable import fingerprint, length
from launcher.data.mixture_order import MixtureOrder, Policy, Weights
from launcher.data.sample_errors import while_reading
from launcher.errors import ConfigError


class Mixture:
    """Datasets laid one after the other, and the order in which a training reads them."""

    def __init__(
        self, datasets: Mapping[str, Any], schedule: Sequence[tuple[int, Weights]], policy: Policy
    ):
        self.datasets = dict(datasets)
        self.schedule = schedule
        self.policy = policy
        for name, dataset in self.datasets.items():
            if not hasattr(dataset, "__getitem__") or not length(dataset):
                raise ConfigError(
                    f"data.sources.{name}: {type(dataset).__name__} should have __getitem__ and"
                    " __len__, and at least one sample."
                )
        self.sizes = {name: len(dataset) for name, dataset in self.datasets.items()}
        self._ends = np.cumsum(list(self.sizes.values()))
        self._epoch: int | None = None
        self._owners = {name: epoch_owners(dataset) for name, dataset in self.datasets.items()}
        owners = {name: state_owner(dataset) for name, dataset in self.datasets.items()}
        self._states = {name: owner for name, owner in owners.items() if owner is not None}
        self._epochs: dict[str, int] = {}
        """The epoch that each source has been told."""

    def order(self, seed: int, shuffle: bool) -> MixtureOrder:
        return MixtureOrder(self.sizes, self.schedule, self.policy, seed, shuffle)

    @property
    def fingerprint(self) -> str:
        """Return the sources' fingerprints, without weights, which a fork may change."""
        return "; ".join(f"{name}: {fingerprint(data)}" for name, data in self.datasets.items())

    def source_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the number of the source of each index: int64 [N]."""
        return np.searchsorted(self._ends, indices, side="right")

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> object:
        source = int(self.source_of(np.array([index]))[0])
        name = list(self.sizes)[source]
        dataset = self.datasets[name]
        epoch = self._epoch
        if epoch is not None and epoch != self._epochs.get(name) and self._owners[name]:
            self._set_epoch_of(name, epoch)
        first = int(self._ends[source - 1]) if source else 0
        with while_reading(dataset, index - first):
            return dataset[index - first]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next sample, counted in its own source."""
        self._epoch = epoch

    def _set_epoch_of(self, name: str, epoch: int) -> None:
        self._epochs[name] = epoch
        for owner in self._owners[name]:
            owner.set_epoch(epoch)

    @property
    def keeps_state(self) -> bool:
        return bool(self._states)

    def state_dict(self) -> State:
        states = {name: owner.state_dict() for name, owner in self._states.items()}
        return {"epochs": dict(self._epochs), "sources": states}

    def load_state_dict(self, state: State) -> None:
        self._epochs = dict(state["epochs"])
        for name, epoch in self._epochs.items():
            self._set_epoch_of(name, epoch)
        for name, source in state["sources"].items():
            self._states[name].load_state_dict(source)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))
