"""Nested records: dicts of numbers within dicts; batches: tensors within lists, tuples, sets and dicts."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

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


def flatten(records: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`{"a": {"b": 1}}` as `("a/b", 1)`."""
    for key, value in records.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def key_average(list_of_dicts: Sequence[Mapping[str, Any]], exclude_nan: bool = False) -> dict[str, Any]:
    """The mean of each key of nested dicts, over those dicts that have it.

    Args:
        exclude_nan: leave NaN out of the mean (this reads tensors, so it waits for the device); a key with no other
            value is NaN.
    """
    result: dict[str, Any] = {}
    keys = list(dict.fromkeys(key for records in list_of_dicts for key in records))
    for key in keys:
        values = [records[key] for records in list_of_dicts if key in records]
        if all(isinstance(value, Mapping) for value in values):
            result[key] = key_average(values, exclude_nan)
            continue
        if exclude_nan:
            values = [value for value in values if not math.isnan(value)]
        result[key] = sum(values[1:], values[0]) / len(values) if values else math.nan
    return result


def to_numbers(records: Mapping[str, Any]) -> dict[str, Any]:
    """0-d tensors as python numbers; this is where the host waits for the device."""
    return {
        key: to_numbers(value)
        if isinstance(value, Mapping)
        else value.item()
        if isinstance(value, torch.Tensor)
        else value
        for key, value in records.items()
    }


def format_records(records: Mapping[str, Any]) -> str:
    """One line for a person: `accuracy 0.8125 aux/loss 0.1`."""
    return " ".join(
        f"{key} {float(value):#.4g}" if isinstance(value, (int, float, torch.Tensor)) else f"{key} {value}"
        for key, value in flatten(records)
    )
