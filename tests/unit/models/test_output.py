"""Checks of the output of `forward`."""

import numpy as np
import pytest
import torch

from launcher.errors import ConfigError
from launcher.models.output import check_output

LOSS = torch.ones((), requires_grad=True)


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        (LOSS, "it returned a Tensor."),
        (None, "it returned nothing (None)."),
        ((LOSS, {}, 1), "it returned (Tensor, dict, int)."),
        ({"loss": LOSS, "a": 1}, "it returned a dict."),
        ((LOSS, None), "it returned (Tensor, NoneType)."),
        ((0.5, {}), "it is a float."),
        ((LOSS.expand(3), {}), "the shape (3,), so"),
        ((torch.tensor(3), {}), "it is of torch.int64"),
        ((LOSS.detach(), {}), "it has no gradient"),
        ((LOSS, {"a": "x"}), "'a' should be a number or a 0-d tensor; it is a str."),
        ((LOSS, {"a": {"b": [1]}}), "'a/b' should be a number or a 0-d tensor; it is a list."),
        ((LOSS, {"a": torch.ones(2, 3)}), "it has the shape (2, 3)"),
        ((LOSS, {"a": np.ones(2)}), "it has the shape (2,)"),
    ],
)
def test_a_wrong_output_is_named(output, fault):
    with pytest.raises(ConfigError) as raised:
        check_output(output, "Net.forward")
    assert str(raised.value).startswith("Net.forward") and fault in str(raised.value)


@pytest.mark.parametrize(
    "output",
    [
        [None, {"a": None}],
        (LOSS, {"a": 1, "b": {"c": True, "d": np.float32(1)}, "e": np.array(2.0), "f": LOSS}),
    ],
)
def test_a_loss_and_numbers_pass(output):
    check_output(output, "Net.forward")


def test_in_an_evaluation_logits_are_whole_and_no_gradient_is_needed():
    with torch.no_grad():
        outputs = {"logits": torch.ones(2, 3), "targets": torch.ones(2)}
        check_output((LOSS * 2, outputs), "Net.forward")
        with pytest.raises(ConfigError, match="'a/logits'"):
            check_output((LOSS * 2, {"a": {"logits": torch.ones(2, 3)}}), "Net.forward")
