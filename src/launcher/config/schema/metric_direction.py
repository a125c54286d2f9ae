"""The name of a metric: which of two of its values is better, and which name is meant."""

import math
import re
from collections.abc import Callable, Iterable
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
    if last in LESS_IS_BETTER:
        return "min"
    return "max" if last in MORE_IS_BETTER else None


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
    best = None
    best_at = None
    for index, value in enumerate(values):
        if is_better(value, best, mode):
            best = value
            best_at = index
    return best_at


def sort_best_first(items: Iterable[T], value: Callable[[T], float | None], mode: Mode) -> list[T]:
    """Sort the items, the best first, without a finite value last.

    Items whose values differ only by rounding keep their order.
    """
    listed = list(items)
    numbers = [math.nan if (number := value(item)) is None else number for item in listed]
    finite = [index for index, number in enumerate(numbers) if math.isfinite(number)]
    groups: list[list[int]] = []
    for index in sorted(finite, key=numbers.__getitem__, reverse=mode == "max"):
        if not groups or is_better(numbers[groups[-1][0]], numbers[index], mode):
            groups.append([])
        groups[-1].append(index)
    order = [index for group in groups for index in sorted(group)]
    return [listed[index] for index in [*order, *sorted({*range(len(listed))} - {*finite})]]


def meant_metrics(metric: str, logged: Iterable[str]) -> list[str]:
    """Return the logged names from which a metric differs by a slip.

    A slip is another group, another case, `_`, `-` or `/`, or one letter. Another digit is not a
    slip, since `top1` and `top5` are two metrics.
    """
    written = {_spelled(metric), _spelled(metric.partition("/")[2] or metric)}

    def is_meant(name: str) -> bool:
        # `val/loss` may mean `val/clean/loss`.
        forms = {name, name.partition("/")[2], name.rpartition("/")[2]}
        return any(is_slip(one, _spelled(form)) for one in written for form in forms)

    return [name for name in sorted(logged) if is_meant(name)]


def _spelled(name: str) -> str:
    """Return a name in small letters without separators."""
    return re.sub("[_/-]", "", name.lower())


def is_slip(one: str, other: str) -> bool:
    """Return whether two texts are equal, or become equal by changing or adding one letter."""
    if min(len(one), len(other)) < 3:
        return one == other
    if len(one) > len(other):
        one, other = other, one
    at = next((i for i, letter in enumerate(one) if letter != other[i]), len(one))
    if len(other) - len(one) > 1:
        return False
    if len(one) == len(other):
        changed = one[at : at + 1] + other[at : at + 1]
        return one[at + 1 :] == other[at + 1 :] and not re.search("[0-9]", changed)
    return one[at:] == other[at + 1 :] and not other[at].isdigit()
