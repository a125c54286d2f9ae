"""Nested state as JSON and tensors, without pickle, so that reading a checkpoint can run no code.

A value that JSON cannot represent is a dict with the single key "$": `{"$": ["tuple", [...]]}`.
"""

import base64
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from launcher.config.messages import describe_type
from launcher.strategies.base import Tensors

MARK = "$"


def encode(obj: object, tensors: Tensors, path: str = "") -> Any:
    """Return the JSON form of `obj`; its tensors go into `tensors` under their path.

    Raises:
        TypeError: a value cannot be stored; the message has its path.
    """
    if obj is None or isinstance(obj, (bool, str)):
        return obj
    if isinstance(obj, np.bool_):
        return bool(obj)
    if isinstance(obj, (int, np.integer)):
        return int(obj)
    if isinstance(obj, (float, np.floating)):
        value = float(obj)
        return value if math.isfinite(value) else {MARK: ["float", repr(value)]}
    if isinstance(obj, torch.Tensor):
        return {MARK: ["tensor", _add(tensors, path, obj.detach())]}
    if isinstance(obj, np.ndarray):
        return {MARK: ["array", _add(tensors, path, torch.from_numpy(obj.copy()))]}
    if isinstance(obj, Mapping):
        items = [
            (key, encode(value, tensors, f"{path}/{key}" if path else str(key)))
            for key, value in obj.items()
        ]
        if all(isinstance(key, str) and key != MARK for key, _ in items):
            return dict(items)
        return {MARK: ["dict", [[_key(key, path), value] for key, value in items]]}
    if isinstance(obj, (list, tuple, set, frozenset)):
        values = [encode(value, tensors, f"{path}/{i}") for i, value in enumerate(obj)]
        type_name = next((name for name, cls in _SEQUENCES.items() if isinstance(obj, cls)), "list")
        return values if type_name == "list" else {MARK: [type_name, values]}
    if isinstance(obj, bytes):
        return {MARK: ["bytes", base64.b64encode(obj).decode()]}
    if isinstance(obj, Path):
        return {MARK: ["path", str(obj)]}
    raise TypeError(
        f"The state at {path or 'the top'} is {describe_type(obj)}, which a checkpoint cannot"
        " hold; use numbers, strings, tensors, arrays, or lists, tuples, sets and dicts of them."
    )


def _key(key: object, path: str) -> Any:
    tensors: Tensors = {}
    data = encode(key, tensors, path)
    if tensors:
        raise TypeError(
            f"The state at {path or 'the top'} has {describe_type(key)} as a key, which a"
            " checkpoint cannot hold; use a text or a number."
        )
    return data


def _add(tensors: Tensors, path: str, tensor: torch.Tensor) -> str:
    """Store a tensor; return its key. `{"a/b": x, "a": {"b": y}}` has one path twice."""
    key = path or "value"
    while key in tensors:
        key += "'"
    tensors[key] = tensor
    return key


_SEQUENCES: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_FROM_TEXT: dict[str, Callable[[Any], object]] = {
    "float": float,
    "bytes": base64.b64decode,
    "path": Path,
}


def decode(data: object, tensors: Mapping[str, torch.Tensor]) -> object:
    if isinstance(data, list):
        return [decode(value, tensors) for value in data]
    if not isinstance(data, dict):
        return data
    if set(data) != {MARK}:
        return {key: decode(value, tensors) for key, value in data.items()}
    type_name, value = data[MARK]
    if type_name in _FROM_TEXT:
        return _FROM_TEXT[type_name](value)
    if type_name == "tensor":
        return tensors[value]
    if type_name == "array":
        return tensors[value].numpy()
    if type_name == "dict":
        return {_hashable(decode(k, tensors)): decode(v, tensors) for k, v in value}
    if type_name in _SEQUENCES:
        return _SEQUENCES[type_name](decode(item, tensors) for item in value)
    raise ValueError(
        f"Unknown kind of stored value: {type_name!r}; the checkpoint is of a newer version."
    )


def _hashable(key: object) -> object:
    return tuple(key) if isinstance(key, list) else key
