"""Which tensors a forward pass changes."""

import pytest
import torch
from torch import nn

from launcher.models.changes import Tensors


class Codebook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("book", torch.ones(2))
        self.register_buffer("count", torch.zeros(()))


def replace(model: Codebook) -> None:
    model.book = model.book + 1


@torch.no_grad()
def add(model: Codebook) -> None:
    model.weight.add_(1)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda model: model.weight + model.book, []),
        (add, ["weight"]),
        (lambda model: model.count.add_(1), ["count"]),
        (lambda model: model.book[0].zero_(), ["book"]),
        (replace, ["book"]),
    ],
)
def test_changes_are_seen_by_name(change, names):
    model = Codebook()
    tensors = Tensors(model)
    change(model)
    assert tensors.changed() == names
