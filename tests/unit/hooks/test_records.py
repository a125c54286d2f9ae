import math
from collections import namedtuple

import numpy as np
import pytest
import torch

from launcher.hooks.records import format_records, key_average, map_nested_tensor, to_numbers

Pair = namedtuple("Pair", "x y")


def test_map_nested_tensor_keeps_the_containers():
    t = torch.ones(2)
    nested = {"a": [t, (t, "word")], "b": Pair(t, 3), "c": {t}}
    doubled = map_nested_tensor(lambda tensor: tensor * 2, nested)
    assert isinstance(doubled["b"], Pair) and doubled["b"].y == 3
    assert torch.equal(doubled["a"][1][0], t * 2) and doubled["a"][1][1] == "word"
    assert torch.equal(doubled["c"].pop(), t * 2)


def test_key_average_over_those_that_have_it():
    records = [{"loss": 1.0, "m": {"acc": 0.5}}, {"loss": 3.0}, {"m": {"acc": 1.0, "f1": 0.25}}]
    assert key_average(records) == {"loss": 2.0, "m": {"acc": 0.75, "f1": 0.25}}
    assert key_average([]) == {}


def test_records_skip_none_and_take_numpy_scalars():
    records = [{"a": None, "b": np.float32(0.5)}, {"a": 2.0, "b": np.float32(1.5), "c": None}]
    assert key_average(records) == {"a": 2.0, "b": 1.0}
    numbers = to_numbers(records[1] | {"n": np.int64(3)})
    assert numbers == {"a": 2.0, "b": 1.5, "n": 3}
    assert {type(value) for value in numbers.values()} == {float, int}
    assert format_records(records[1]) == "a 2.000 b 1.500"


@pytest.mark.parametrize(("exclude", "expected"), [(True, 2.0), (False, math.nan)])
def test_key_average_and_nan(exclude, expected):
    found = key_average([{"x": math.nan}, {"x": 2.0}], exclude_nan=exclude)["x"]
    assert found == expected or (math.isnan(found) and math.isnan(expected))
