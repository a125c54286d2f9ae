"""Which of two values is better."""

import itertools
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.direction import (
    LESS_IS_BETTER,
    MORE_IS_BETTER,
    NEGATIONS,
    best_index,
    direction,
    is_better,
    ranked,
)

MODES = st.sampled_from(["min", "max"])
VALUES = st.lists(st.floats(-1e6, 1e6) | st.just(math.nan) | st.just(math.inf), max_size=12)
TURNED = (
    "drop",
    "gap",
    "reduction",
    "decrease",
    "delta",
    "std",
    "ratio",
    "slope",
    "deficit",
    "weight",
)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("val/loss", "min"),
        ("train/aux/loss_total", "min"),
        ("val/perplexity", "min"),
        ("val/top1_error", "min"),
        ("val/accuracy", "max"),
        ("val/f1", "max"),
        ("val/AUC", "max"),
        ("val/top5", "max"),
        ("val/bleu4", "max"),
        ("val/f1_macro", "max"),
        ("val/accuracy_top5", "max"),
        ("val/error_rate", "min"),
        ("val/success_rate", "max"),
        ("val/score", "max"),
        ("val/brier_score", "min"),
        ("val/f1_score", "max"),
        ("val/recall_at_5", "max"),
        ("val/hits@10", "max"),
        ("val/bits_per_byte", "min"),
        ("val/loss_per_token", "min"),
        ("val/cats/loss", "min"),
        ("val/accuracy_loss", "min"),
        ("val/calibration_error", "min"),
        ("val/accuracy/0", "max"),
        ("val/fpr_at_recall", None),
        ("val/time_to_accuracy", None),
        ("train/grad_norm", None),
        ("val/x", None),
        ("val/neg_mean_squared_error", None),
        ("val/inverse_loss", None),
        ("val/at_k", None),
    ],
)
def test_the_name_implies_the_direction(metric: str, expected: str | None) -> None:
    assert direction(metric) == expected


@pytest.mark.parametrize("word", sorted(LESS_IS_BETTER | MORE_IS_BETTER))
def test_a_word_that_may_turn_the_meaning_round_leaves_the_direction_open(word: str) -> None:
    assert direction(f"val/{word}") == ("min" if word in LESS_IS_BETTER else "max")
    assert {direction(f"val/{word}_{turned}") for turned in TURNED} == {None}
    assert {direction(f"val/{negation}_{word}") for negation in NEGATIONS} == {None}


@given(VALUES, MODES)
def test_the_best_of_a_list_is_not_improved_on_later(values: list[float], mode: Any) -> None:
    place = best_index(values, mode)
    assert (place is None) == (not any(map(math.isfinite, values)))
    if place is not None:
        assert not any(is_better(value, values[place], mode) for value in values[place:])


@given(VALUES, MODES)
def test_a_ranking_has_all_values_in_order_up_to_rounding(values: list[float], mode: Any) -> None:
    places = ranked(range(len(values)), lambda place: values[place], mode)
    assert sorted(places) == list(range(len(values)))
    for before, after in itertools.pairwise(values[place] for place in places):
        assert math.isfinite(before) or not math.isfinite(after)
        assert not is_better(after, before, mode, 2e-6 * abs(before))


@pytest.mark.parametrize("mode", ["min", "max"])
def test_values_that_differ_by_rounding_keep_their_order(mode: Any) -> None:
    noise = random.Random(0)
    values = [0.9 * (1 + noise.uniform(-1, 1) * 1e-7) for _ in range(20)]
    assert ranked(range(20), values.__getitem__, mode) == list(range(20))
    assert best_index(values, mode) == 0


def test_min_delta_counts_where_it_is_more_than_rounding() -> None:
    assert is_better(1.1, 1.0, "max") and not is_better(1.1, 1.0, "max", min_delta=0.2)
    assert not is_better(1.0 + 1e-7, 1.0, "max", min_delta=1e-9) and is_better(
        1.0 + 1e-5, 1.0, "max", min_delta=1e-9
    )
    assert (
        is_better(-1.0, None, "max")
        and not is_better(math.nan, None, "max")
        and not is_better(math.inf, 1, "max")
    )
