"""Statistics of values over seeds.

They are intervals, tests of the difference between two arms, and the number of seeds that shows
one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

LEVEL, POWER = 0.05, 0.8
RESAMPLES = 100_000
"""Maximum number of permutations. If there are more, this many are drawn."""
MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Summary:
    """Statistics of one arm. `low` and `high` are the 95 % interval of the mean."""

    n: int
    mean: float
    sd: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """The mean of one arm less the mean of another. `low` and `high` are its 95 % interval."""

    mean: float
    low: float
    high: float
    p: float
    test: str
    sd: float
    """Standard deviation of the differences between values of one seed, or the root mean square of
    both arms' deviations."""
    is_paired: bool
    least_p: float
    """The smallest p-value that the test can have with as many values."""


def summary(values: Sequence[float]) -> Summary:
    n, mean, sd = len(values), float(np.mean(values)), float(np.std(values, ddof=1))
    reach = float(stats.t.ppf(1 - LEVEL / 2, n - 1)) * sd / math.sqrt(n)
    return Summary(n, mean, sd, mean - reach, mean + reach)


def difference(
    one: Sequence[float], other: Sequence[float], paired: bool, exact: bool = False
) -> Difference:
    """Test the difference between the means of two arms.

    Args:
        one: values of the first arm.
        other: values of the second arm.
        paired: whether the values of both have the same seeds, in the same order.
        exact: take the p-value of a permutation test, which assumes no distribution.
    """
    if paired:
        result: Any = stats.ttest_rel(one, other)
        sd = float(np.std(np.subtract(one, other), ddof=1))
    else:
        result = stats.ttest_ind(one, other, equal_var=False)
        sd = math.sqrt((np.var(one, ddof=1) + np.var(other, ddof=1)) / 2)
    interval = result.confidence_interval(1 - LEVEL)
    p, name = float(result.pvalue), "paired t" if paired else "Welch"
    least_p = 0.0
    if exact:
        p, name, least_p = permuted(one, other, paired)
    mean = float(np.mean(one) - np.mean(other))
    return Difference(mean, float(interval.low), float(interval.high), p, name, sd, paired, least_p)


def permuted(
    one: Sequence[float], other: Sequence[float], paired: bool
) -> tuple[float, str, float]:
    """Test the means by permutations.

    Returns:
        The p-value, the test's name, and its smallest p-value.
    """
    count = 2 ** len(one) if paired else math.comb(len(one) + len(other), len(one))
    result = stats.permutation_test(
        (one, other),
        lambda x, y, axis: np.mean(x, axis=axis) - np.mean(y, axis=axis),
        permutation_type="samples" if paired else "independent",
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(0),
    )
    kind = "paired permutation" if paired else "permutation"
    name = kind if count <= RESAMPLES else f"{kind}, {RESAMPLES} drawn"
    # There are two, for both signs of the difference.
    return float(result.pvalue), name, 2 / min(count, RESAMPLES)


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p-values for their number (Holm 1979)."""
    adjusted = [0.0] * len(ps)
    floor = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        floor = max(floor, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = floor
    return adjusted


def power(effect: float, n: int, paired: bool, level: float = LEVEL) -> float:
    """Return the probability that a two-sided t-test of `n` seeds in each arm shows a difference.

    Args:
        effect: the difference in units of `Difference.sd`.
        n: seeds in each arm.
        paired: whether both arms have the same seeds.
        level: the level of significance.
    """
    freedom = n - 1 if paired else 2 * n - 2
    shift = abs(effect) * math.sqrt(n if paired else n / 2)
    # It is the mean over the standard deviations that the values may have, since scipy's noncentral
    # t is NaN for large shifts.
    spreads = np.sqrt(stats.chi2.ppf((np.arange(1000) + 0.5) / 1000, freedom) / freedom)
    limits = stats.t.ppf(1 - level / 2, freedom) * spreads
    return float(np.mean(stats.norm.sf(limits - shift) + stats.norm.cdf(-limits - shift)))


def seeds_needed(effect: float, paired: bool, level: float = LEVEL) -> int | None:
    """Return the smallest number of seeds in each arm that shows a difference.

    The power is 80 %. The number is None if it is too large.
    """
    low, high = 1, 2
    while power(effect, high, paired, level) < POWER:
        if high >= MOST_SEEDS:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if power(effect, middle, paired, level) >= POWER else (middle, high)
        )
    return high
