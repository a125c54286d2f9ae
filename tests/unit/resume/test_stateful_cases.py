"""The corpus of classes with state: what a plain loop loses of each by a stop and a resume."""

import pytest

from support.stateful import CASES, STOPS, plain_losses, resumed_losses

LOSING, HARMLESS = 40, 30


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_plain_loop_differs_if_the_state_is_lost(case):
    whole = plain_losses(case)
    assert plain_losses(case) == whole
    is_equal = [resumed_losses(case, stop) == whole for stop in STOPS]
    assert all(is_equal) is (case.lost is None)


def test_there_are_many_of_both_kinds():
    assert sum(case.lost is not None for case in CASES) >= LOSING
    assert sum(case.lost is None for case in CASES) >= HARMLESS
