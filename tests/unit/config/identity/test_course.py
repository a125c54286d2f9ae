"""Values with which the steps of a run were trained, where its identity does not tell them."""

from typing import Any

import pytest

from launcher.config.identity.course import changes_between, describe_courses
from launcher.rundir.training_history import difference, newest_settings


def settings(rate: float, steps: int = 20, **hooks: Any) -> dict[str, Any]:
    return {"optimizer": {"lr": rate}, "trainer": {"max_steps": steps}, "hooks": hooks}


NAMED = {"optimizer": {"lr": 0.1}, "trainer": {"max_steps": 20}}


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([], ""),
        ([(0, 20, settings(0.1))], ""),
        ([(0, 8, settings(0.1)), (8, 20, settings(0.1, logging={"interval": 2}))], ""),
        ([(0, 8, settings(0.1)), (8, 20, settings(0.2))], "optimizer.lr=0.1 to step 8, then 0.2"),
        # An adopted run has another identity.
        ([(0, 20, settings(0.2))], "optimizer.lr=0.2"),
        (
            [(0, 20, settings(0.1)), (20, 40, settings(0.1, 40))],
            "trainer.max_steps=20 to step 20, then 40",
        ),
        # A rollback has removed the second attempt's steps.
        ([(0, 8, settings(0.1)), (8, 20, settings(0.2)), (8, 20, settings(0.1))], ""),
        # The second attempt has trained nothing.
        ([(0, 8, settings(0.1)), (8, 8, settings(0.2)), (8, 20, settings(0.1))], ""),
        ([(0, 8, None)], ""),
    ],
)
def test_the_values_of_steps_that_the_identity_does_not_tell(attempts, expected):
    recorded: list[Any] = []
    for start, end, now in attempts:
        trained = None if now is None else difference(newest_settings(recorded), now)
        recorded.append({"start_step": start, "end_step": end, "trained": trained})
    record: Any = {"identity": NAMED, "attempts": recorded}
    assert describe_courses(record, ()) == expected


@pytest.mark.parametrize(
    ("start", "end", "changed"),
    [(0, 8, False), (8, 20, False), (0, 20, True), (4, 12, True), (20, 40, False), (16, 24, True)],
)
def test_the_values_that_change_between_two_steps(start, end, changed):
    attempts = [(0, 8, settings(0.1)), (8, 20, settings(0.2)), (20, 40, settings(0.2, 40))]
    recorded: list[Any] = []
    for first, last, now in attempts:
        trained = difference(newest_settings(recorded), now)
        recorded.append({"start_step": first, "end_step": last, "trained": trained})
    record: Any = {"attempts": recorded}
    assert bool(changes_between(record, start, end, ())) is changed
    assert changes_between(record, start, end, ("optimizer", "trainer")) == {}
