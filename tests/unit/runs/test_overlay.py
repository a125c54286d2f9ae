"""Mappings that runs share."""

import pytest

from launcher.runs.overlay import Overlay, shared, varying

BASE = {"a": "1", "b": "1"}


@pytest.mark.parametrize("values", [{}, {"a": "1"}, {"a": "2", "b": "3"}, {"b": "1", "c": "4"}])
def test_an_overlay_is_the_mapping_it_stands_for(values):
    overlay = Overlay.of(BASE, values)
    assert dict(overlay) == values and len(overlay) == len(values) and bool(overlay) == bool(values)
    assert all((key in overlay, overlay.get(key)) == (key in values, values.get(key)) for key in "abc")


@pytest.mark.parametrize(
    ("rows", "keys"),
    [
        ([], set()),
        ([{"a": "2"}], set()),
        ([{"a": "2", "b": "1"}, {"a": "2", "b": "1"}], set()),
        ([{"a": "2", "b": "1"}, {"a": "1", "b": "1"}], {"a"}),
        ([{"a": "1"}, {"a": "1", "b": "1"}], {"b"}),
        ([{"a": "1"}, {"a": "1", "c": "1"}], {"c"}),
        ([{"a": "1", "b": "1"}, {"a": "2", "b": "1"}, {"a": "1", "b": "1"}], {"a"}),
    ],
)
def test_keys_that_vary(rows, keys):
    assert varying(rows) == varying([Overlay.of(BASE, row) for row in rows]) == keys


def test_a_shared_record_is_the_record():
    records = [{"id": n, "versions": {"torch": "2"}, "git": None, "attempts": [{"number": 1}]} for n in range(2)]
    first, second = map(shared, records)
    assert [first, second] == records and first["versions"] is second["versions"]
    assert [repr(shared({"git": {"dirty": dirty}})["git"]["dirty"]) for dirty in (0, False)] == ["0", "False"]
