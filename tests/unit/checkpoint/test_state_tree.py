import json
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from launcher.checkpoint.state_tree import decode, encode


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        -1.5,
        "text",
        b"\x00\xff",
        [1, [2]],
        (1, (2, "a")),
        {1, 2},
        frozenset({3}),
        {},
        {"a": {"b": 1}},
        {1: "int key", (2, 3): "tuple key"},
        {"$": "a key like the mark"},
        Path("a/b"),
        math.inf,
    ],
)
def test_round_trip(value):
    tensors: dict[str, torch.Tensor] = {}
    back = decode(json.loads(json.dumps(encode(value, tensors), allow_nan=False)), tensors)
    assert back == value and type(back) is type(value)


def test_tensors_and_arrays():
    tensors: dict[str, torch.Tensor] = {}
    value = {
        "x": [torch.arange(3), np.eye(2)],
        "nan": math.nan,
        "scalar": np.float64(2.5),
        "flag": np.True_,
        "o": OrderedDict(a=1),
    }
    back = decode(encode(value, tensors), tensors)
    assert torch.equal(back["x"][0], torch.arange(3)) and np.array_equal(back["x"][1], np.eye(2))
    assert math.isnan(back["nan"]) and back["scalar"] == 2.5
    assert back["flag"] is True and back["o"] == {"a": 1}


@pytest.mark.parametrize(
    "value", [{"a/b": 1, "a": {"b": 2}}, {1: 1, "1": 2}, {"a/0": 1, "a": [2, 3]}]
)
def test_tensors_of_the_same_path_are_kept_apart(value):
    def as_tensors(obj: Any) -> Any:
        if isinstance(obj, dict):
            return {key: as_tensors(item) for key, item in obj.items()}
        return list(map(as_tensors, obj)) if isinstance(obj, list) else torch.tensor(obj)

    tensors: dict[str, torch.Tensor] = {}
    assert decode(json.loads(json.dumps(encode(as_tensors(value), tensors))), tensors) == value


def test_tree_names_a_value_that_cannot_be_stored():
    with pytest.raises(TypeError, match="hooks/mine/1 is an object"):
        encode({"hooks": {"mine": [1, object()]}}, {})
