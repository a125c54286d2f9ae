"""Statistics over seeds, against scipy, counting and simulation."""

import itertools
import math

import numpy as np
import pytest
import scipy  # it imports `scipy.stats` at the first use

from launcher.runs.statistics import difference, holm, power, seeds_needed, summary

ONE, OTHER = [0.31, 0.28, 0.35, 0.30, 0.27], [0.33, 0.31, 0.36, 0.34, 0.29]


def test_summary_equals_scipy() -> None:
    found = summary(ONE)
    low, high = scipy.stats.t.interval(0.95, 4, loc=np.mean(ONE), scale=scipy.stats.sem(ONE))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert (found.n, found.mean, found.sd) == pytest.approx(
        (5, scipy.stats.tmean(ONE), scipy.stats.tstd(ONE))
    )


def test_paired_and_welch_tests_equal_scipy() -> None:
    paired, apart = difference(ONE, OTHER, paired=True), difference(ONE, OTHER[:4], paired=False)
    gaps = np.subtract(ONE, OTHER)
    alone = scipy.stats.ttest_1samp(gaps, 0)
    assert (paired.p, paired.mean) == pytest.approx((alone.pvalue, gaps.mean()))
    assert (paired.low, paired.high) == pytest.approx(tuple(alone.confidence_interval(0.95)))
    welch = scipy.stats.ttest_ind_from_stats(
        *(np.mean(ONE), scipy.stats.tstd(ONE), 5),
        *(np.mean(OTHER[:4]), scipy.stats.tstd(OTHER[:4]), 4),
        equal_var=False,
    )
    assert (apart.p, apart.test) == (pytest.approx(welch.pvalue), "Welch")


@pytest.mark.parametrize("paired", [True, False])
def test_exact_p_values_are_those_of_all_permutations(paired: bool) -> None:
    if paired:
        gaps = np.subtract(ONE, OTHER)
        means = [np.mean(gaps * signs) for signs in itertools.product((1, -1), repeat=5)]
    else:
        pool = np.array([*ONE, *OTHER])
        chosen = [list(indices) for indices in itertools.combinations(range(10), 5)]
        means = [pool[indices].mean() - np.delete(pool, indices).mean() for indices in chosen]
    observed = abs(np.mean(ONE) - np.mean(OTHER)) - 1e-12
    found = difference(ONE, OTHER, paired, exact=True)
    assert found.p == pytest.approx(np.mean(np.abs(means) >= observed))
    assert found.least_p == pytest.approx(2 / len(means))
    assert found.test == ("paired permutation" if paired else "permutation")


def test_permutations_are_drawn_where_they_are_too_many() -> None:
    numbers = np.random.default_rng(0)
    one, other = numbers.normal(0, 1, (2, 30))
    found = [difference(one, other, True, exact=True) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0].test == "paired permutation, 100000 drawn"
    assert found[0].p == pytest.approx(difference(one, other, True).p, abs=0.02)


def test_intervals_cover_the_truth_in_95_of_100_simulations() -> None:
    numbers, count = np.random.default_rng(0), 500
    limit = 3 * math.sqrt(0.95 * 0.05 / count)
    covered = {"mean": 0, "paired": 0, "Welch": 0}
    for seed_effects in numbers.normal(0, 1, (count, 5)):
        one = 2 + seed_effects + numbers.normal(0, 0.5, 5)
        other = 1 + seed_effects + numbers.normal(0, 0.5, 5)
        apart = numbers.normal(1, 3, 8)
        alone, paired, welch = (
            summary(one),
            difference(one, other, True),
            difference(one, apart, False),
        )
        covered["mean"] += alone.low <= 2 <= alone.high
        covered["paired"] += paired.low <= 1 <= paired.high
        covered["Welch"] += welch.low <= 1 <= welch.high
    # Welch's degrees of freedom are an approximation.
    for name, hits in covered.items():
        assert hits / count == pytest.approx(0.95, abs=limit + 0.005 * (name == "Welch")), name


@pytest.mark.parametrize(
    ("effect", "n", "paired"),
    [(1.0, 10, True), (0.5, 64, False), (1.5, 5, False), (9.0, 2, True), (0.0, 5, True)],
)
def test_power_is_the_share_of_simulations_that_show_the_difference(
    effect: float, n: int, paired: bool
) -> None:
    numbers, count = np.random.default_rng(0), 4000
    one, other = numbers.normal(effect, 1, (count, n)), numbers.normal(0, 1, (count, n))
    p = (
        scipy.stats.ttest_1samp(one, 0, axis=1).pvalue
        if paired
        else scipy.stats.ttest_ind(one, other, axis=1).pvalue
    )
    assert power(effect, n, paired) == pytest.approx(np.mean(p < 0.05), abs=0.025)
    freedom, shift = (n - 1, effect * n**0.5) if paired else (2 * n - 2, effect * (n / 2) ** 0.5)
    limit = scipy.stats.t.ppf(0.975, freedom)
    exact = scipy.stats.nct.sf(limit, freedom, shift) + scipy.stats.nct.cdf(-limit, freedom, shift)
    assert power(effect, n, paired) == pytest.approx(exact, abs=1e-3)


def test_seeds_needed_are_the_fewest_with_that_power() -> None:
    """The textbook has 64 for half a standard deviation, and 10 pairs for a whole one."""
    assert (seeds_needed(0.5, paired=False), seeds_needed(1.0, paired=True)) == (64, 10)
    for effect, paired in itertools.product((0.2, 0.9, 3.0, 50.0), (True, False)):
        needed = seeds_needed(effect, paired)
        assert needed is not None and power(effect, needed, paired) >= 0.8
        assert needed == 2 or power(effect, needed - 1, paired) < 0.8
    assert seeds_needed(1e-6, paired=True) is None


def test_holm_is_that_of_the_paper() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
