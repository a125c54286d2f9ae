"""Models and options that fsdp rejects before it shards."""

import pytest
import torch
from torch import nn

from launcher.errors import ConfigError
from launcher.strategies.fsdp import check_shardable

DOUBLE = nn.Parameter(torch.zeros(4, dtype=torch.float64))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)


def test_parameter_without_dimensions_is_rejected_by_name():
    net = Net()
    net.block.register_parameter("scale", nn.Parameter(torch.tensor(1.0), requires_grad=False))
    with pytest.raises(ConfigError, match=r"^model: .*cannot shard the parameter block\.scale"):
        check_shardable(net, [])


@pytest.mark.parametrize(
    ("convert", "has_units", "is_rejected"),
    [
        (lambda net: None, True, False),
        (lambda net: net.head.double(), False, True),
        (lambda net: net.block.double(), True, False),
        (lambda net: net.head.double().requires_grad_(False), False, False),
        (lambda net: setattr(net.block, "bias", DOUBLE), True, True),
    ],
)
def test_trained_parameters_of_a_unit_have_one_dtype(convert, has_units, is_rejected):
    net = Net()
    convert(net)
    units = [net.block] if has_units else []
    if not is_rejected:
        check_shardable(net, units)
        return
    with pytest.raises(ConfigError, match=r"is float32 and .* is float64; .*strategy=ddp\."):
        check_shardable(net, units)
