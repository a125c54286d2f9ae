"""Values, types and suggestions in messages."""

from typing import Annotated, Any, Literal

import pytest
from annotated_types import MinLen
from omegaconf import OmegaConf

from launcher.config.compose.composer import compose
from launcher.config.messages import ELSEWHERE, closest_name, hint, show
from launcher.config.schema.value_types import fits
from launcher.process.plural import plural
from launcher.types import (
    Fraction,
    NonEmptyText,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UnitInterval,
)
from support.composition import mistakes


@pytest.mark.parametrize(("value", "text"), [
    (None, "null"), (True, "true"), ("abc", "'abc'"), (0.1, "0.1"), ([1, "a"], "[1,'a']"),
    ({"a": None}, "{a:null}"),
])  # fmt: skip
def test_values_are_shown_as_on_a_command_line(value, text):
    assert show(value) == text


def test_long_values_are_cut():
    shown = show(list(range(100)))
    assert len(shown) <= 62 and shown.endswith("]")


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (int, [0, -3], [True, 1.0, "1", None]),
        (float, [0, 0.5], [True, "0.5", None]),
        (bool, [True], [0, "true"]),
        (str, ["1"], [1, None]),
        (NonEmptyText, ["1", " "], ["", 1, None]),
        (Annotated[str, MinLen(2)], ["12"], ["1"]),
        (PositiveInt, [1], [0, 1.5, None]),
        (NonNegativeInt | None, [0, None], [-1]),
        (PositiveFloat, [1, 1e-9], [0, -0.1]),
        (Fraction, [0, 1], [1.1]),
        (UnitInterval, [0], [1]),
        (Literal["a", 1], ["a", 1], ["b", True]),
        (list[PositiveInt], [[], [1]], [[0], 1]),
        (str | list[str], ["a", ["a"]], [["a", 1]]),
        (dict[str, float], [{"a": 1}], [{"a": "x"}, []]),
        (Any, [None, object()], []),
    ],
)
def test_types_are_strict(annotation, good, bad):
    assert [value for value in good if not fits(value, annotation)] == []
    assert [value for value in bad if fits(value, annotation)] == []


def test_the_nearest_name_is_similar_or_contains_the_other():
    names = ["max_steps", "micro_batch_size", "lr"]
    assert closest_name("max_step", names) == "max_steps"
    assert closest_name("batch_size", names) == "micro_batch_size"
    assert closest_name("zzz", names) is None
    assert closest_name("epochs", ["eps"]) is None
    assert hint("max_step", names, "trainer.{}") == "; did you mean trainer.max_steps?"
    assert hint("zzz", names) == "."


OURS = {name: ours for ours, names in ELSEWHERE.items() for name in names.split()}


@pytest.mark.parametrize("prefix", ["", "+", "trainer.", "+trainer."])
def test_a_name_of_another_trainer_names_ours(prefix):
    found = {message.lstrip("+") for message in mistakes([f"{prefix}{name}=1" for name in OURS])}
    key = prefix.lstrip("+")
    assert found == {
        f"{key}{name}=1: no key {key}{name}; use {ours}." for name, ours in OURS.items()
    }


def test_ours_exist():
    config = compose([])
    for ours in ELSEWHERE:
        assert OmegaConf.select(config, ours.partition(",")[0], default="absent") != "absent"


def test_a_count_has_the_number_of_its_noun():
    counts = plural(1, "run"), plural(0, "run"), plural(2000, "micro-batch")
    assert counts == ("1 run", "0 runs", "2,000 micro-batches")
