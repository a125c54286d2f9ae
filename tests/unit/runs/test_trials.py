"""Trials of a study, compared with each other."""

import random

import pytest

from launcher.rundir.history import Curve
from launcher.runs.trials import Trial, best_of
from launcher.search.study_settings import Settings


def completed(number: int, run: str, *values: float) -> Trial:
    curves = tuple(Curve([1.0], [value]) for value in values)
    return Trial(number, {}, run=run, state="completed", step=1, curves=curves)


@pytest.mark.parametrize("count", [0, 1, 60])
def test_the_best_of_several_objectives_are_those_that_no_other_is_better_than(count: int) -> None:
    settings = Settings(
        ("val/loss", "val/accuracy"), ("minimize", "maximize"), n_trials=count, value="last"
    )
    numbers = random.Random(0)
    trials = [
        completed(number, f"r/{number}", numbers.randint(0, 9), numbers.randint(0, 9))
        for number in range(count)
    ]
    twins = [
        completed(count + each.number, str(each.run), *each.values(settings)) for each in trials
    ]

    def is_beaten(trial: Trial) -> bool:
        (loss, accuracy), others = (
            trial.values(settings),
            [each.values(settings) for each in trials],
        )
        return any(x <= loss and y >= accuracy and [x, y] != [loss, accuracy] for x, y in others)

    assert best_of([*trials, *twins], settings) == [
        trial for trial in trials if not is_beaten(trial)
    ]
