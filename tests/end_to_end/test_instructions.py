"""What a step costs, in instructions that valgrind counts: the load of the machine does not change
them."""

import pytest
from benchmarks import callgrind, guard


@pytest.mark.skipif(not callgrind.is_available(), reason="valgrind on x86-64 is needed")
def test_a_step_takes_hardly_more_instructions_than_that_of_a_hand_written_loop() -> None:
    ratios = guard.ratios()
    assert ratios.keys() == guard.LIMITS.keys()
    assert {name: ratio for name, ratio in ratios.items() if ratio > guard.LIMITS[name]} == {}
