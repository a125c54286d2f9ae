"""At which steps trials pause, and in which bracket each is."""

from collections import Counter
from typing import Any

import pytest

from launcher.config.options import own_option
from launcher.errors import ConfigError
from launcher.search.rungs import bracket_of, rungs_of
from launcher.search.study_settings import Settings


def settings(**keys: Any) -> Settings:
    return Settings("val/loss", "minimize", **{"pruner": "asha"} | keys)


def config(max_steps: int, interval: Any = 100) -> dict[str, Any]:
    evaluation = own_option("hooks", "evaluation")["evaluation"] | {"interval": interval}
    return {"trainer": {"max_steps": max_steps}, "hooks": {"mine": evaluation}}


@pytest.mark.parametrize(
    ("max_steps", "interval", "keys", "rungs"),
    [
        (900, 100, {}, [100, 300]),
        (1000, 100, {}, [100, 200, 400]),
        (1000, 100, {"reduction_factor": 2}, [100, 200, 300, 500]),
        (900, 100, {"min_steps": 100}, [100, 300]),
        (901, 100, {"min_steps": 300}, [300, 900]),
        (901, 100, {"min_steps": 50}, [100, 200, 500]),
        (100, "1epoch", {}, [2, 4, 12, 34]),
        (900, 100, {"pruner": "median"}, []),
    ],
)
def test_rungs_are_steps_that_have_a_value(max_steps, interval, keys, rungs):
    assert rungs_of(settings(**keys), config(max_steps, interval)) == rungs


@pytest.mark.parametrize(
    ("max_steps", "interval", "keys", "sentence"),
    [
        (900, 100, {"min_steps": 900}, "a run of trainer.max_steps=900 has no step to pause at"),
        (100, 100, {}, "a run of trainer.max_steps=100 has no step to pause at"),
        (100, 0, {}, "has no step to pause at"),
    ],
)
def test_a_run_without_such_a_step_is_rejected(max_steps, interval, keys, sentence):
    with pytest.raises(ConfigError, match=sentence):
        rungs_of(settings(**keys), config(max_steps, interval))


def test_brackets_get_shares_of_the_trials():
    asha = [bracket_of(number, [10, 30], settings()) for number in range(9)]
    assert set(asha) == {0}
    counts = Counter(
        bracket_of(number, [10, 30], settings(pruner="hyperband")) for number in range(165)
    )
    assert counts == {0: 90, 1: 45, 2: 30}
