"""Nested records (dicts of numbers and dicts), and batches (tensors in containers)."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch


def map_nested_tensor(f: Callable[[torch.Tensor], object], obj: object) -> Any:
    """Apply `f` to every tensor in lists, tuples (also named ones), sets and dicts."""
    if isinstance(obj, torch.Tensor):
        return f(obj)
    if isinstance(obj, Mapping):
        return type(obj)((key, map_nested_tensor(f, value)) for key, value in obj.items())  # type: ignore[call-arg]
    if isinstance(obj, tuple) and hasattr(obj, "_fields"):
        return type(obj)(*(map_nested_tensor(f, value) for value in obj))
    if isinstance(obj, (list, tuple, set)):
        return type(obj)(map_nested_tensor(f, value) for value in obj)
    return obj


def flatten(records: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    """Flatten `{"a": {"b": 1}}` to `{"a/b": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in records.items():
        # The check for a Mapping costs the most.
        if type(value) is float or not isinstance(value, (dict, Mapping)):
            flat[f"{prefix}{key}"] = value
        else:
            flat.update(flatten(value, f"{prefix}{key}/"))
    return flat


def key_average(
    list_of_dicts: Sequence[Mapping[str, Any]], exclude_nan: bool = False
) -> dict[str, Any]:
    """Compute the mean of each key of nested dicts, over the dicts that have a value for it.

    To exclude NaN, tensors are read, so the host waits for the device. A key with only NaN is NaN.
    """
    result: dict[str, object] = {}
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


def to_numbers(records: Mapping[str, object]) -> dict[str, object]:
    """Convert 0-d tensors and NumPy scalars to numbers, without None; this waits for the device."""
    return {key: to_number(value) for key, value in records.items() if value is not None}


def to_number(value: object) -> object:
    # A float is the usual case, and the checks of the others cost more.
    if type(value) is float:
        return value
    if isinstance(value, Mapping):
        return to_numbers(value)
    if isinstance(value, (torch.Tensor, np.generic)):
        return value.item()
    return value


def show(value: float, digits: int = 5) -> str:
    return f"{value:#.{digits}g}".rstrip(".")


def format_records(records: Mapping[str, object]) -> str:
    """Format one line for a person: `accuracy 0.8125 aux/loss 0.1000`."""
    return " ".join(
        f"{key} {show(value, 4) if isinstance(value, (int, float)) else value}"
        for key, value in flatten(to_numbers(records)).items()
    )


def format_step(info: Mapping[str, Any]) -> str:
    losses = ", ".join(f"{float(loss):.6g}" for loss in info["loss"])
    records = "; ".join(filter(None, map(format_records, info["records"])))
    return f"loss {losses}" + (f"; {records}" if records else "")
