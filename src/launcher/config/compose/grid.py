"""The jobs of a sweep."""

import random
from collections.abc import Sequence
from decimal import Decimal
from itertools import product
from math import ceil

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from launcher.config.compose.overrides import normalize
from launcher.errors import ConfigError

SEARCH = "hydra/sweeper=optuna"
GRID = "basic"
"""The option of `hydra/sweeper` that takes no intervals, Hydra's own."""


def expand(overrides: Sequence[Override], with_intervals: bool = False) -> list[list[str]]:
    """Return the overrides of each job: every combination of the swept keys' values.

    A job has all overrides of the command in their order, since a later one may change an earlier
    one.

    Args:
        overrides: of the command.
        with_intervals: replace an interval by its first number instead of rejecting it.
    """
    choices = [_choices(override, with_intervals) for override in overrides]
    return [list(job) for job in product(*choices)]


def _choices(override: Override, with_intervals: bool) -> list[str]:
    """Return an override for each of its values."""
    key = override.get_key_element()
    text = str(override.input_line)
    if not override.is_sweep_override():
        return [text]
    if override.is_discrete_sweep():
        choices = [normalize(f"{key}={value}") for value in list_values(override)]
        if not choices:
            raise ConfigError(f"{text}: has no value, so there is nothing to run.")
        return choices
    if with_intervals and isinstance(interval := override.value(), IntervalSweep):
        # 1 and not 1.0, which a whole number cannot be.
        return [f"{key}={interval.start:.12g}"]
    raise ConfigError(
        f"{text}: has no list of values; e.g. {key}=0.1,0.2 or {key}=range(1,5), or search it with"
        f" {SEARCH}."
    )


def bare_key(override: Override) -> str:
    """Return the key of an override without `+` and `++`."""
    return override.get_key_element().lstrip("+")


def check_swept(overrides: Sequence[Override]) -> None:
    """Reject a sweep of Hydra's own key, and a further value of a swept key, which is dropped."""
    swept: dict[str, object] = {}
    for override in overrides:
        key = bare_key(override)
        if override.is_hydra_override() and override.is_sweep_override():
            raise ConfigError(f"{override.input_line}: Hydra's own keys cannot be swept.")
        if key in swept:
            raise ConfigError(
                f"{override.input_line}: {key} has values already ({swept[key]}); give all in one"
                " place."
            )
        if override.is_sweep_override():
            swept[key] = override.input_line


def list_values(override: Override) -> list[str]:
    """Return the values of a sweep as texts, the numbers of a range without rounding errors."""
    texts = list(override.sweep_string_iterator())
    span = override.value()
    if not isinstance(span, RangeSweep) or not {type(span.start), type(span.step)} - {int}:
        return texts
    start, stop, step = (Decimal(str(number)) for number in (span.start, span.stop, span.step))
    numbers = [str(float(start + index * step)) for index in range(ceil((stop - start) / step))]
    if span.shuffle:
        return random.sample(numbers, len(numbers))
    return numbers
