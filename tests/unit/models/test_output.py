"""Checks of the output of `forward`."""

from pathlib import Path

import numpy as np
import pytest
import torch

from launcher import LoggingHook
from launcher.errors import ConfigError
from launcher.models.output import LOGGED, check_output
from support.toy import Recorder, Toy

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


@pytest.mark.parametrize("name", [*sorted(LOGGED), "loss/ce", "lr/body"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_record_with_a_name_of_the_trainer_is_rejected(name, nested):
    first, _, rest = name.partition("/")
    records = {first: {rest: 1.0}} if nested and rest else {name: 1.0}
    with pytest.raises(ConfigError) as raised:
        check_output((LOSS, records), "Net.forward")
    assert str(raised.value) == (
        f"Net.forward: the record '{name}' has the name of a metric that the trainer logs; name it"
        f" 'aux/{name}'."
    )
    check_output(
        (LOSS, {f"aux/{name}": 1.0, f"my_{first}": 1.0, "aux": {name: 1.0}}), "Net.forward"
    )


@pytest.mark.parametrize("records", [{"": 1.0}, {"a": {"": 1.0}}, {"a/": 1.0}, {"/a": 1.0}])
def test_a_record_without_a_name_is_rejected(records):
    with pytest.raises(ConfigError, match="has no name, or a part of it is empty; name it 'aux/v"):
        check_output((LOSS, records), "Net.forward")


def test_the_names_of_the_trainer_are_those_that_it_logs(tmp_path):
    logged = Recorder()
    Toy([LoggingHook(1), logged], 2, tmp_path).train()
    ((_, first), _) = logged.of("train")
    assert {*first} - {"size", "aux"} <= LOGGED
    page = Path(__file__).parents[3] / "docs" / "models.md"
    assert all(f"`{name}`" in page.read_text() for name in LOGGED)
