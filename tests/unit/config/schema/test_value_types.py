"""Types of settings: how they are described, which values fit, and their JSON schemas."""

from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen

from launcher.config.schema.value_types import ELSEWHERE, EPOCHS, value_type
from launcher.types import NonEmptyText

NUMBERS = Annotated[list[float], MinLen(2), MaxLen(2)]
CASES = {
    "whole": (int, "a whole number", [0, -3], [1.0, True, "1", None]),
    "number": (float, "a number", [1, 0.5], [True, "1"]),
    "or null": (int | None, "a whole number or null", [None, 2], ["auto"]),
    "choice": (Literal["auto", 1], "one of auto, 1", ["auto", 1], ["other", 1.0, True]),
    "from to": (Annotated[int, Ge(0), Le(9)], "a whole number from 0 to 9", [0, 9], [-1, 10, "5"]),
    "below": (Annotated[float, Ge(0), Lt(1)], "a number from 0 to below 1", [0, 0.5], [1]),
    "above": (Annotated[float, Gt(0)], "a number greater than 0", [1], [0, None]),
    "text": (NonEmptyText, "text that is not empty", ["a"], ["", 1]),
    "two": (NUMBERS, "a list of 2, each item a number", [[0.9, 1]], [[1], ["a", "b"], 1]),
    "list": (list[Any], "a list", [[], [1, "a"]], [1, None]),
    "list last": (list[int] | None, "null or a list, each item a whole number", [None, [1]], [1]),
    "mapping": (dict[str, Any], "a mapping of keys to values", [{}, {"a": 1}], [{1: 2}, []]),
    "unknown": (object, "another type", [None, 1, []], []),
}


@pytest.mark.parametrize(("annotation", "words", "fitting", "others"), CASES.values(), ids=CASES)
def test_a_type_is_described_and_checked(annotation, words, fitting, others):
    kind = value_type(annotation)
    assert kind.describe() == words
    assert all(map(kind.fits, fitting)) and not any(map(kind.fits, others))


@pytest.mark.parametrize(
    ("annotation", "schemas"),
    [
        (Annotated[int, Ge(1)], [{"type": "integer", "minimum": 1}, EPOCHS]),
        (float | None, [{"type": "number"}, {"type": "null"}]),
        (Literal["a", 1], [{"enum": ["a", 1]}]),
        (NUMBERS, [{
            "type": "array", "items": {"anyOf": [{"type": "number"}, *ELSEWHERE]},
            "minItems": 2, "maxItems": 2,
        }]),
        (dict[str, int], [{"type": "object"}]),
        (object, [{}]),
    ],
)  # fmt: skip
def test_a_type_has_alternative_schemas(annotation, schemas):
    assert value_type(annotation).schemas() == schemas
