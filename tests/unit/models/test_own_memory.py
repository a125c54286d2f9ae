"""Buffers whose elements share memory get memory of their own."""

import pytest
import torch
from torch import nn

from launcher.errors import ConfigError
from launcher.models.own_memory import give_own_memory, shares_memory

SHARED = {
    "expanded": torch.ones(1).expand(8),
    "expanded rows": torch.arange(3.0).expand(4, 3),
    "windows": torch.arange(6.0).unfold(0, 3, 1),
    "complex": torch.ones(1, dtype=torch.cfloat).expand(2, 2),
}
OWN = {
    "contiguous": torch.ones(2, 3),
    "transposed": torch.ones(2, 3).T,
    "a slice": torch.ones(8)[::2],
    "one row expanded": torch.arange(4).expand(1, 4),
    "a number": torch.tensor(1.0),
    "empty": torch.ones(1).expand(0, 1),
    "sparse": torch.ones(2, 2).to_sparse(),
}


@pytest.mark.parametrize(("tensor", "is_shared"), [
    *((tensor, True) for tensor in SHARED.values()), *((tensor, False) for tensor in OWN.values()),
])  # fmt: skip
def test_shared_memory_is_seen(tensor, is_shared):
    assert shares_memory(tensor) is is_shared


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("is_persistent", [True, False])
def test_a_buffer_is_copied_once(name, is_persistent):
    first, second = nn.Module(), nn.Module()
    for module in (first, second):
        module.register_buffer("mask", SHARED[name], persistent=is_persistent)
    model = nn.ModuleList([first, second])
    names = model.state_dict().keys()
    give_own_memory(model)
    assert torch.equal(first.mask, SHARED[name])
    assert first.mask is second.mask
    assert model.state_dict().keys() == names
    first.mask.copy_(torch.zeros_like(first.mask))


def test_a_parameter_is_rejected():
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(1).expand(8))
    with pytest.raises(ConfigError, match=r"^model: several elements of the parameter weight "):
        give_own_memory(model)
