"""Hydra's ranges as Optuna's distributions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from launcher.config.compose.session import loader, session
from launcher.errors import ConfigError
from launcher.search.search_space import check_enqueued, read_space, round_value


def space_of(*arguments: str, **ranges: Any) -> Any:
    with session(None):
        return read_space(loader(), arguments, ranges)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tag(log,interval(1e-5,1e-1))", FloatDistribution(1e-5, 1e-1, log=True)),
        ("interval(0,1)", FloatDistribution(0, 1)),
        ("int(interval(1,64))", IntDistribution(1, 64)),
        ("tag(log,int(interval(1,64)))", IntDistribution(1, 64, log=True)),
        ("shuffle(range(1,10,4))", IntDistribution(1, 9, step=4)),
        ("range(3,1)", None),
        ("range(0.25,1.0,0.25)", CategoricalDistribution(["0.25", "0.5", "0.75"])),
        ("1e-3,1e-4", CategoricalDistribution(["0.001", "0.0001"])),
        ("shuffle(a,b,c,d,e,f,g,h,a)", CategoricalDistribution([*"abcdefgh"])),
        ("[1,2],[3]", CategoricalDistribution(["[1,2]", "[3]"])),
        ("interval(1,1)", None),
        ("tag(log,interval(0,1))", None),
    ],
)
def test_a_range_of_the_command_line(text, expected):
    if expected is None:
        with pytest.raises(ConfigError, match=r"x=.*; e\.g\. x="):
            space_of(f"x={text}")
        return
    assert space_of(f"x={text}", "y=3", "hpo.n_trials=5") == ({"x": expected}, ["y=3"])


def test_a_glob_over_the_options_of_a_group():
    space, _ = space_of("model=glob(*,exclude=[g*,h*,p*,s*])")
    assert space == {"model": CategoricalDistribution(["mlp"])}


def test_ranges_of_a_file_that_the_command_line_does_not_set():
    ranges = {"a.b": "interval(0,1)", "c": [1, "x"], "d": "1,2", "e": "1,2"}
    space, fixed = space_of("d=7", "e=range(0,3)", **ranges)
    expected = {
        "e": IntDistribution(0, 2),
        "a.b": FloatDistribution(0, 1),
        "c": CategoricalDistribution(["1", "x"]),
    }
    assert (space, fixed) == (expected, ["d=7"])


@pytest.mark.parametrize(
    ("arguments", "ranges", "sentence"),
    [
        (["x=1"], {}, "there is nothing to search; give a key a range"),
        ([], {"x": "3"}, "hpo.space: x='3' is one value; e.g. x: choice"),
        ([], {"x": "interval(1,"}, r"hpo.space: x='interval\(1,' is not a range; e.g. x: "),
        (["x=a,ghp_abcdefghijklmnopqrstuvwxyz0123456789"], {}, "^x: a secret would be stored"),
        (["x=1,2", "hpo.seed=1,2"], {}, "hpo.seed=1,2: is a setting of the whole search"),
    ],
)
def test_search_space_rejects_a_bad_range(arguments, ranges, sentence):
    with pytest.raises(ConfigError, match=sentence):
        space_of(*arguments, **ranges)


SPACE = {
    "f": FloatDistribution(0.1, 0.5),
    "n": IntDistribution(1, 9, step=4),
    "c": CategoricalDistribution(["1", "a"]),
}


def test_enqueued_values_are_in_the_space():
    assert check_enqueued({"f": 0.2, "c": 1}, SPACE) == {"f": 0.2, "c": "1"}
    for params, sentence in (
        ({"g": 1}, "g is not in"),
        ({"n": 2}, "n=2 is outside"),
        ({"f": 0.6}, "f=0.6 is outside"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            check_enqueued(params, SPACE)


@given(st.floats(1e-7, 1.0), st.floats(0.0, 1.0))
def test_a_rounded_value_is_within_its_range(low, share):
    high = low * 3
    value = round_value(min(low + share * (high - low), high), FloatDistribution(low, high))
    assert isinstance(value, float) and low <= value <= high
