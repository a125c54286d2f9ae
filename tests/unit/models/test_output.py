"""Checks of the output of `forward`."""

import numpy as np
import pytest
import torch

from launcher.errors import ConfigError
from launcher.models.output import check_output

LOSS = torch.ones((), requires_grad=True)


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (LOSS, "Net.forward should return (loss, records); it returned a Tensor."),
        (None, "Net.forward should return (loss, records); it returned nothing (None)."),
        ((LOSS, {}, 1), "Net.forward should return (loss, records); it returned a tuple of 3."),
        ({"loss": LOSS, "a": 1}, "Net.forward should return (loss, records); it returned a dict."),
        (
            (LOSS, None),
            (
                "Net.forward should return (loss, records) with a dict of records; it returned"
                " nothing (None)."
            ),
        ),
        (
            (LOSS, [1.0]),
            "Net.forward should return (loss, records) with a dict of records; it returned a list.",
        ),
        ((0.5, {}), "Net.forward should return a loss that is a 0-d tensor; it is a float."),
        (
            (LOSS.expand(3), {}),
            "Net.forward should return a loss that is a 0-d tensor; it has the shape (3,), so",
        ),
        (
            (torch.tensor(3), {}),
            (
                "Net.forward should return a loss that is a floating-point tensor; it is of"
                " torch.int64"
            ),
        ),
        (
            (LOSS.detach(), {}),
            (
                "Net.forward should return a loss that is computed from the parameters; it has no"
                " gradi"
            ),
        ),
        (
            (LOSS, {"a": "x"}),
            "Net.forward: the record 'a' should be a number or a 0-d tensor; it is a str.",
        ),
        (
            (LOSS, {"a": {"b": [1]}}),
            "Net.forward: the record 'a/b' should be a number or a 0-d tensor; it is a list.",
        ),
        (
            (LOSS, {"a": torch.ones(2, 3)}),
            "Net.forward: the record 'a' should be a number or a 0-d tensor; it has the s",
        ),
        (
            (LOSS, {"a": np.ones(2)}),
            "Net.forward: the record 'a' should be a number or a 0-d tensor; it has the shape (2,",
        ),
        (
            (LOSS, {"logits": torch.ones(2, 3)}),
            "Net.forward: the record 'logits' should be a number or a 0-d tensor",
        ),
    ],
)
def test_a_wrong_output_is_a_sentence(output, sentence):
    with pytest.raises(ConfigError) as raised:
        check_output(output, "Net.forward")
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize(
    "output",
    [
        (LOSS, {}),
        [None, {"a": None}],
        (
            LOSS,
            {
                "a": 1,
                "b": {"c": True, "d": np.float32(1)},
                "e": np.array(2.0),
                "f": torch.tensor(3),
            },
        ),
    ],
)
def test_a_loss_and_numbers_pass(output):
    check_output(output, "Net.forward")


def test_in_an_evaluation_logits_are_whole_and_no_gradient_is_needed():
    with torch.no_grad():
        check_output(
            (LOSS * 2, {"logits": torch.ones(2, 3), "targets": torch.ones(2)}), "Net.forward"
        )
        with pytest.raises(ConfigError, match="'a/logits'"):
            check_output((LOSS * 2, {"a": {"logits": torch.ones(2, 3)}}), "Net.forward")
