"""The texts by which a trace compares values; test_resume_check.py has what it names."""

import itertools
from typing import Any

import torch

from launcher.jobs.trace import plain


def test_texts_of_values_are_equal_for_equal_values_alone() -> None:
    values: list[Any] = [
        1,
        1.0,
        "1",
        [1, 2],
        {"a": {3, 4}},
        itertools.count(3),
        torch.ones(2),
        torch.zeros(2),
        None,
    ]
    assert len({plain(value) for value in values}) == len(values)
    assert plain({"a": {4, 3}}) == plain({"a": {3, 4}}) and len(plain("x" * 500)) < 80
