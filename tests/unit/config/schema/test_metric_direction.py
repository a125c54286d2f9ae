"""Which of two values is better."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.schema import metric_direction
from launcher.config.schema.metric_direction import (
    best_index,
    direction,
    is_better,
    meant_metrics,
    sort_best_first,
)

MODES = st.sampled_from(["min", "max"])
VALUES = st.lists(st.floats(-1e6, 1e6) | st.just(math.nan) | st.just(math.inf), max_size=12)


NAMES: dict[str | None, str] = {
    "min": "val/top1_error val/accuracy_loss val/cats/loss loss",
    "max": "val/macro_F1 val/AUC",
    None: (
        "val/neg_mean_squared_error val/inverse_loss val/accuracy_drop val/accuracy/0 val/f1_score"
        " val/recall_at_5 val/inaccuracy train/grad_norm val/x"
    ),
}


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("", None),
        *((f"val/{name}", "min") for name in metric_direction.LESS_IS_BETTER),
        *((f"val/{name}", "max") for name in metric_direction.MORE_IS_BETTER),
        *((name, expected) for expected, names in NAMES.items() for name in names.split()),
    ],
)
def test_the_last_word_of_the_name_decides(metric, expected):
    assert direction(metric) == expected


@given(VALUES, MODES)
def test_the_best_of_a_list_is_not_improved_on_later(values, mode):
    place = best_index(values, mode)
    assert (place is None) == (not any(map(math.isfinite, values)))
    if place is not None:
        assert not any(is_better(value, values[place], mode) for value in values[place:])


@given(VALUES, MODES)
def test_a_ranking_has_all_values_in_order_up_to_rounding(values, mode):
    places = sort_best_first(range(len(values)), lambda place: values[place], mode)
    assert sorted(places) == list(range(len(values)))
    for before, after in itertools.pairwise(values[place] for place in places):
        assert math.isfinite(before) or not math.isfinite(after)
        assert not is_better(after, before, mode, 2e-6 * abs(before))


@pytest.mark.parametrize("mode", ["min", "max"])
def test_values_that_differ_by_rounding_keep_their_order(mode):
    noise = random.Random(0)
    values = [0.9 * (1 + noise.uniform(-1, 1) * 1e-7) for _ in range(20)]
    assert sort_best_first(range(20), values.__getitem__, mode) == list(range(20))
    assert best_index(values, mode) == 0


def test_min_delta_counts_where_it_is_more_than_rounding():
    assert is_better(1.1, 1.0, "max") and not is_better(1.1, 1.0, "max", min_delta=0.2)
    assert not is_better(1.0 + 1e-7, 1.0, "max", min_delta=1e-9)
    assert is_better(1.0 + 1e-5, 1.0, "max", min_delta=1e-9)
    assert is_better(-1.0, None, "max")
    assert not is_better(math.nan, None, "max")
    assert not is_better(math.inf, 1, "max")


@pytest.mark.parametrize(
    ("metric", "logged", "is_meant"),
    [
        ("val/los", "val/loss", True),
        ("val/losss", "val/loss", True),
        ("val/lass", "val/loss", True),
        ("val_loss", "val/loss", True),
        ("loss", "val/loss", True),
        ("val/Loss", "val/loss", True),
        ("test/loss", "val/loss", True),
        ("val/top_one", "val/top-one", True),
        ("val/loss", "val/clean/loss", True),
        ("val/top1", "val/top5", False),
        ("val/f", "val/f1", False),
        ("val/auc", "val/loss", False),
        ("val/acc", "val/accuracy", False),
        ("val/clean/auc", "val/noisy/auc", False),
    ],
)
def test_a_slip_in_a_name(metric, logged, is_meant):
    assert meant_metrics(metric, ["train/x", logged]) == [logged] * is_meant
    assert meant_metrics(logged, [metric]) == [metric] * is_meant or "clean" in logged
