"""Nested records: dicts of numbers within dicts; batches: tensors within lists, tuples, sets and dicts."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch


def map_nested_tensor(f: Callable[[torch.Tensor], Any], obj: Any) -> Any:
    """Apply `f` to every tensor in lists, tuples (named ones too), sets and dicts; anything else stays as it is."""
    if isinstance(obj, torch.Tensor):
        return f(obj)
    if isinstance(obj, Mapping):
        return type(obj)((key, map_nested_tensor(f, value)) for key, value in obj.items())  # type: ignore[call-arg]
    if isinstance(obj, tuple) and hasattr(obj, "_fields"):
        return type(obj)(*(map_nested_tensor(f, value) for value in obj))
    if isinstance(obj, (list, tuple, set)):
        return type(obj)(map_nested_tensor(f, value) for value in obj)
    return obj


def flatten(records: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a/b": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in records.items():
        if type(value) is not float and isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}/")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def key_average(list_of_dicts: Sequence[Mapping[str, Any]], exclude_nan: bool = False) -> dict[str, Any]:
    """The mean of each key of nested dicts, over those dicts that have it and not None.

    Args:
        exclude_nan: leave NaN out of the mean (this reads tensors, so it waits for the device); a key with no other
            value is NaN.
    """
    result: dict[str, Any] = {}
    keys = list(dict.fromkeys(key for records in list_of_dicts for key in records))
    for key in keys:
        values = [records[key] for records in list_of_dicts if records.get(key) is not None]
        if not values:
            continue
        if all(isinstance(value, Mapping) for value in values):
            result[key] = key_average(values, exclude_nan)
            continue
        if exclude_nan:
            values = [value for value in values if not math.isnan(value)]
        result[key] = sum(values[1:], values[0]) / len(values) if values else math.nan
    return result


def to_numbers(records: Mapping[str, Any]) -> dict[str, Any]:
    """0-d tensors and NumPy scalars as python numbers, without what is None. Here the host waits for the device."""
    return {key: to_number(value) for key, value in records.items() if value is not None}


def to_number(value: Any) -> Any:
    if type(value) is float:  # most are: the others' checks cost more
        return value
    if isinstance(value, Mapping):
        return to_numbers(value)
    return value.item() if isinstance(value, (torch.Tensor, np.generic)) else value


def show(value: float, digits: int = 5) -> str:
    """A number for reading, with this many significant digits, however small it is."""
    return f"{value:#.{digits}g}".rstrip(".")


def format_records(records: Mapping[str, Any]) -> str:
    """One line for a person: `accuracy 0.8125 aux/loss 0.1000`."""
    return " ".join(
        f"{key} {show(value, 4) if isinstance(value, (int, float)) else value}"
        for key, value in flatten(to_numbers(records)).items()
    )
