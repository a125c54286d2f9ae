"""Valid run records, and the format of numbers and times in them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.rundir.record_format import plain_number, read_record

RECORD: dict[str, Any] = {"id": "a", "name": "b", "state": "running", "step": 3, "loss": "nan"}
RECORD |= {"attempts": []}


def read(folder: Path, data: Any) -> dict[str, Any]:
    (folder / "run.json").write_text(json.dumps(data))
    return read_record(folder / "run.json")


FORK = {"id": "a", "name": None, "step": 1}


@pytest.mark.parametrize(("data", "sentence"), [
    ([RECORD], "not a mapping"),
    ({**RECORD, "step": "3"}, "step is '3'"),
    ({**RECORD, "state": "lost"}, "state is 'lost'"),
    ({**RECORD, "best": {"metric": "val/loss", "value": 1.0}}, r"best\.step is None"),
    ({**RECORD, "best": "step-20"}, "best is 'step-20'"),
    ({**RECORD, "forked_from": FORK}, r"forked_from\.name is None"),
    ({**RECORD, "logged": {"curve": "", "newest": None}}, r"logged\.newest is None"),
    ({**RECORD, "logged": {"curve": "", "newest": {"a/b": 3}}}, r"logged\.newest\.a/b is 3"),
    ({**RECORD, "config": ["a"]}, r"config is \['a'\]"),
    ({**RECORD, "overrides": [3]}, "overrides has 3"),
    ({**RECORD, "attempts": 3}, "attempts is 3"),
    ({**RECORD, "attempts": [{"number": 1}]}, r"attempts\[0\]\.started is None"),
    ({**RECORD, "attempts": [1]}, r"attempts\[0\] is not a mapping"),
    ({**RECORD, "trials": [{"number": "3"}]}, r"trials\[0\]\.study is None"),
])  # fmt: skip
def test_object_that_is_not_a_record_is_rejected(tmp_path, data, sentence):
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path, data)


@given(st.floats())
def test_any_number_comes_back_from_json(value):
    back = float(json.loads(json.dumps(plain_number(value), allow_nan=False)))
    assert back == value or (math.isnan(back) and math.isnan(value))
