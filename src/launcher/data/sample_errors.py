"""Name the dataset and the sample at which reading data failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils.data import default_collate

from launcher.errors import ConfigError


@contextmanager
def while_reading(dataset: object, index: int) -> Iterator[None]:
    """Add the sample to an error of the dataset, which keeps its type and traceback."""
    try:
        yield
    except Exception as error:
        # A dataset may have others inside.
        if not isinstance(error, ConfigError) and not hasattr(error, "__notes__"):
            error.add_note(f"data: {type(dataset).__name__}[{index}] raised it.")
        raise


def collate_samples(
    collate: Any, dataset: object, indices: Sequence[int], samples: list[Any]
) -> object:
    """Call `collate`, with the samples in its error. A stream's `indices` are their numbers."""
    try:
        return collate(samples)
    except Exception as error:
        reason = _reason(type(dataset).__name__, indices, samples, error)
        if collate is default_collate:
            raise ConfigError(reason) from error
        # The error of a user's function keeps its frames.
        error.add_note(reason)
        raise


def _reason(name: str, indices: Sequence[int], samples: list[Any], error: Exception) -> str:
    forms = list(map(_describe, samples))
    first = f"{name}[{indices[0]}]"
    for index, form in zip(indices, forms, strict=False):
        if form == "None":
            return f"data: {name}[{index}] returned None; return a sample."
        if form != forms[0]:
            return (
                f"data: {name}[{index}] is {form}, and {first} is {forms[0]}; make them equal, or"
                " set data.collate_fn."
            )
    return (
        f"data: samples like {first}, {forms[0]}, cannot be made into a batch ({error}); return"
        " tensors, arrays, numbers, texts, or tuples and dicts of them, or set data.collate_fn."
    )


def _describe(sample: Any) -> str:
    """Describe a sample's structure, with the shapes of tensors and arrays."""
    if sample is None:
        return "None"
    if isinstance(sample, Mapping):
        items = (f"{key}: {_describe(value)}" for key, value in sample.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(sample, list | tuple):
        return f"({', '.join(map(_describe, sample))})"
    name = type(sample).__name__
    if hasattr(sample, "shape"):
        return f"{name} {list(sample.shape)}"
    return name
