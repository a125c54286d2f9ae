"""The objects inside a dataset that declare a state or an epoch."""

from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from launcher.data.declared import has_epochs, outermost


class Epochs(Dataset[Any]):
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return 3

    def set_epoch(self, epoch: int) -> None:
        raise AssertionError("it is only looked for")


def wrapped() -> Any:
    return Subset(ConcatDataset([Epochs(), Subset(Epochs(), [0])]), [0])


def test_those_inside_wrappers_are_found():
    assert list(outermost(wrapped(), has_epochs)) == [
        ".dataset.datasets.0",
        ".dataset.datasets.1.dataset",
    ]


@pytest.mark.parametrize(
    "make", [int, str, lambda n: (n, n), lambda n: {"a": n}, lambda n: torch.zeros(1)]
)
def test_samples_are_not_asked(make):
    asked: list[object] = []

    def has(value: object) -> bool:
        asked.append(value)
        return has_epochs(value)

    samples = Subset(list(map(make, range(1000, 2000))), range(1000))
    assert outermost(samples, has) == {}
    assert asked.count(samples) and len(asked) < 10
