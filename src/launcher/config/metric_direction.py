"""Decide which of two values of a metric is better, for training and for the ranking of runs."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

Mode = Literal["min", "max"]
T = TypeVar("T")

NOISE = 1e-6
"""Relative difference below which two values count as equal. The order of summation changes a
float32 mean by about 1e-7."""
LESS_IS_BETTER = ("loss", "error", "perplexity", "mse", "rmse", "mae", "wer")
MORE_IS_BETTER = ("accuracy", "acc", "f1", "auc", "auroc", "precision", "recall")
NEGATIONS = {"neg", "negative", "inverse"}


def direction(metric: str) -> Mode | None:
    """Return whether less or more of a metric is better, by the last word of its name.

    Returns:
        None if the word is not in the table, or the name has a negation (`neg_mse`).
    """
    *others, last = re.findall("[a-z0-9]+", metric.lower()) or [""]
    if NEGATIONS & set(others):
        return None
    return "min" if last in LESS_IS_BETTER else "max" if last in MORE_IS_BETTER else None


def mode_of(metric: str, named: object = None) -> Mode:
    """Return the direction that is named, else the direction of the metric's name, else min."""
    mode = named if named in ("min", "max") else direction(metric)
    return "max" if mode == "max" else "min"


def is_better(new: float, old: float | None, mode: Mode, min_delta: float = 0.0) -> bool:
    """Return whether the new value is better by more than rounding and `min_delta`.

    A value that is not finite is not better, and any finite value is better than None.
    """
    if not math.isfinite(new):
        return False
    if old is None:
        return True
    gain = old - new if mode == "min" else new - old
    return gain > max(min_delta, NOISE * abs(old))


def without_noise(new: float, best: float | None, mode: Mode) -> float:
    """Return the best value in place of a value that differs from it by rounding only."""
    if best is None or is_better(new, best, mode) or is_better(best, new, mode):
        return new
    return best if math.isfinite(new) else new


def best_index(values: Iterable[float], mode: Mode) -> int | None:
    """Return the index of the best value, the first of equal ones, or None if none is finite."""
    best, best_at = None, None
    for index, value in enumerate(values):
        if is_better(value, best, mode):
            best, best_at = value, index
    return best_at


def ranked(items: Iterable[T], value: Callable[[T], float | None], mode: Mode) -> list[T]:
    """Sort the items, the best first, without a finite value last.

    Items whose values differ only by rounding keep their order.
    """

    def finite(item: T) -> float | None:
        number = value(item)
        return number if number is not None and math.isfinite(number) else None

    pairs: Sequence[tuple[int, T, float | None]] = [
        (index, item, finite(item)) for index, item in enumerate(items)
    ]
    known = [(index, item, number) for index, item, number in pairs if number is not None]
    known.sort(key=lambda entry: entry[2], reverse=mode == "max")
    groups: list[list[tuple[int, T, float]]] = []
    for entry in known:
        if not groups or is_better(groups[-1][0][2], entry[2], mode):
            groups.append([])
        groups[-1].append(entry)
    order = [
        (index, item)
        for group in groups
        for index, item, _ in sorted(group, key=lambda entry: entry[0])
    ]
    return [item for _, item in order] + [item for _, item, number in pairs if number is None]
